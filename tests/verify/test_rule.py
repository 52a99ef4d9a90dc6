"""What every rule shares: its arguments, and the one draw that decides a position."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxspec import verify

RISING, FALLING = (0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1)


class TestDrawOutcome:
    """The one draw that decides a position."""

    def test_a_uniform_of_zero_accepts_nothing_impossible(self, monkeypatch):
        """The comparison is strict."""
        monkeypatch.setattr(jax.random, "uniform", lambda key, *_, **__: jnp.zeros(()))
        child, is_hit = verify.draw_outcome(jax.random.key(0), jnp.array([0.0, 0.0, 0.5]))
        assert (int(child), bool(is_hit)) == (2, True)
        assert not verify.draw_outcome(jax.random.key(0), jnp.zeros(3))[1]

    def test_a_uniform_near_one_accepts_what_is_certain(self, monkeypatch):
        monkeypatch.setattr(jax.random, "uniform", lambda key, *_, **__: jnp.float32(1 - 2**-24))
        child, is_hit = verify.draw_outcome(jax.random.key(0), jnp.array([0.25, 0.75, 0.0]))
        assert (int(child), bool(is_hit)) == (1, True)

    def test_law(self):
        accept = jnp.array([0.2, 0.0, 0.5])
        keys = jax.random.split(jax.random.key(8), 2**16)
        child, is_hit = jax.jit(jax.vmap(lambda key: verify.draw_outcome(key, accept)))(keys)
        counts = np.bincount(np.where(is_hit, child, 3), minlength=4)
        assert reference.chi_square_excess(counts, np.array([0.2, 0.0, 0.5, 0.3])) < 5

    def test_reads_one_position(self):
        with pytest.raises(AssertionError, match="one position"):
            verify.draw_outcome(jax.random.key(0), jnp.zeros((3, 2)))


class TestArguments:
    """Shapes and types are checked while a program is traced, plain, vmapped or jitted."""

    ARGUMENTS = (
        jnp.asarray(FALLING, jnp.float32),
        jnp.asarray(RISING, jnp.float32),
        jnp.array([2, 3], jnp.int32),
        jnp.ones(2, bool),
    )

    @pytest.mark.parametrize("rule", verify.RULES.values(), ids=verify.RULES)
    @pytest.mark.parametrize(
        ("place", "wrong", "message"),
        [
            (0, jnp.zeros((2, 4)), "one position"),
            (1, jnp.zeros(3), "assert_equal_shape"),
            (1, jnp.zeros(4, jnp.bfloat16), "assert_type"),
            (2, jnp.zeros(2), "assert_type"),
            (3, jnp.zeros(3, bool), "assert_equal_shape"),
            (3, jnp.zeros(2, jnp.int32), "assert_type"),
            (4, jnp.zeros(3, bool), "assert_equal_shape"),
        ],
    )
    def test_are_of_one_position(self, rule, place, wrong, message):
        arguments = [*self.ARGUMENTS, None]
        arguments[place] = wrong
        with pytest.raises(AssertionError, match=message):
            jax.eval_shape(rule.outcome, *arguments)

    @pytest.mark.parametrize("rule", verify.RULES.values(), ids=verify.RULES)
    def test_may_be_mapped(self, rule):
        several = [jnp.stack([value] * 3) for value in self.ARGUMENTS]
        accept, rest = jax.eval_shape(jax.vmap(rule.outcome), *several)
        assert (accept.shape, rest.shape) == ((3, 2), (3, 4))
        with pytest.raises(AssertionError, match="one position"):
            jax.eval_shape(rule.outcome, *several)
        with pytest.raises(AssertionError, match="one row"):
            rule.propose(jax.random.key(0), several[0], 2)
