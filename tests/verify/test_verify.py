"""The rules at one position: worked numbers, the literal twins, and exactness by enumeration."""

import functools
import importlib
import pkgutil

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxspec import sampling, verify

RISING, FALLING = (0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1)
ONE_HOT = (1.0, 0.0, 0.0, 0.0)
HALF = (0.5, 0.3, 0.2, 0.0)


@functools.partial(jax.jit, static_argnums=0)
def _outcomes(rule, target, draft, children, active):
    return jax.vmap(lambda tokens: rule.outcome(target, draft, tokens, active))(children)


def outcomes(rule, target, draft, children, active=None):
    """The rule's `[P, C]` acceptances and `[P, V]` residuals for `[P, C]` proposals; shapes are padded, few compile."""
    children = np.asarray(children, np.int32)
    padded = np.zeros((24, children.shape[1]), np.int32)
    padded[: len(children)] = children
    active = np.ones(children.shape[1], bool) if active is None else np.asarray(active)
    result = _outcomes(rule, np.asarray(target, np.float32), np.asarray(draft, np.float32), padded, active)
    return tuple(np.asarray(leaf, np.float64)[: len(children)] for leaf in result)


def acceptance(rule, target, draft, count):
    """`[count]` mean acceptance by child rank, over all proposals."""
    children, weights = zip(*rule.draws(np.asarray(draft, np.float64), count), strict=True)
    return np.asarray(weights) @ outcomes(rule, target, draft, children)[0]


def law(rule, target, draft, count, active):
    """`[V]` output law with only some of the children there, by enumeration."""
    children, weights = zip(*rule.draws(np.asarray(draft, np.float64), count), strict=True)
    total = np.zeros(len(target))
    for tokens, weight, accept, rest in zip(
        children, weights, *outcomes(rule, target, draft, children, active), strict=True
    ):
        np.add.at(total, list(tokens), weight * accept)
        total += weight * (1.0 - accept.sum()) * rest
    return total


WORKED = {  # rule, target, draft, acceptance by child
    "papers 4.1, one child": ("sequoia", FALLING, RISING, (0.6,)),
    "papers 4.1, two": ("sequoia", FALLING, RISING, (0.6, 23 / 140)),
    "papers 4.1, four": ("sequoia", FALLING, RISING, (0.6, 23 / 140, 0.0760123, 0.1597020)),
    "papers 4.3": ("sequoia", (0.2, 0.1, 0.4, 0.3), (0.5, 0.5, 0, 0), (0.3, 0, 0.65, 0.05)),
    "rising, sequoia": ("sequoia", RISING, HALF, (0.5, 0.1, 0, 0.4)),
    "rising, one-hot draft": ("sequoia", RISING, ONE_HOT, (0.1, 0.8, 0.05, 0.05)),
    "draft is the target": ("sequoia", FALLING, FALLING, (1, 0, 0, 0)),
    "draft is the target, with zeros": ("sequoia", HALF, HALF, (1, 0, 0, 0)),
    "one-hot both": ("sequoia", ONE_HOT, ONE_HOT, (1, 0, 0, 0)),
    "cover, appendix F.3": ("sequoia", (1.0, 0.0), (0.5, 0.5), (0.5, 0.5)),
    "naive top-k, 4.1": ("topk", FALLING, RISING, (0.1, 0.2, 0.3, 0.4)),
    "naive top-k, 4.2": ("topk", (0.35, 0.25, 0.25, 0.15), (0.7, 0.15, 0.1, 0.05), (0.35, 0.25, 0.25)),
    "order of the draft": ("topk", (0.2, 0.5, 0.3), (0.5, 0.3, 0.2), (0.2, 0.5)),
    "rejection sampling accepts all": ("sequoia", (0.5, 0.3, 0.2), (0.5, 0.3, 0.2), (1.0,)),
    "one-hot target": ("topk", (0, 1, 0), (0.2, 0.1, 0.7), (0.0,)),
}


@pytest.mark.parametrize(("name", "target", "draft", "wanted"), WORKED.values(), ids=WORKED)
def test_worked_acceptance(name, target, draft, wanted):
    np.testing.assert_allclose(acceptance(verify.RULES[name], target, draft, len(wanted)), wanted, atol=1e-6)
    checks.assert_rule_is_exact(verify.RULES[name], target, draft, len(wanted))


@pytest.mark.parametrize(("count", "total"), [(1, 0.6), (2, 107 / 140), (3, 0.840298), (4, 1.0)])
def test_sequoia_totals_of_the_paper(count, total):
    assert acceptance(verify.SEQUOIA, FALLING, RISING, count).sum() == pytest.approx(total, abs=1e-6)


def test_sequoia_beats_naive_top_k_on_a_peaked_draft():
    """.98333 against .85."""
    target, draft = (0.35, 0.25, 0.25, 0.15), (0.7, 0.15, 0.1, 0.05)
    assert acceptance(verify.SEQUOIA, target, draft, 3).sum() == pytest.approx(0.983333, abs=1e-6)
    assert acceptance(verify.TOP_K, target, draft, 3).sum() == pytest.approx(0.85, abs=1e-6)


def test_speculative_sampling_residual():
    """(.75, .25, 0, 0) behind any rejected token."""
    _, residual = outcomes(verify.SEQUOIA, FALLING, RISING, [(2,), (3,)])
    np.testing.assert_allclose(residual, [(0.75, 0.25, 0, 0)] * 2, atol=1e-6)


def test_one_hot_target_rejects_and_corrects():
    """At temperature 0 token 2 is proposed and rejected, token 1 emitted."""
    accept, residual = outcomes(verify.TOP_K, (0, 1, 0), (0.2, 0.1, 0.7), [(2,)])
    assert accept.tolist() == [[0.0]]
    assert residual.tolist() == [[0.0, 1.0, 0.0]]


@pytest.mark.parametrize("children", [(0, 1), (1, 0), (0, 2), (2, 1)], ids=str)
def test_order_of_fixed_children_does_not_change_the_law(children):
    """Children that were not drawn at random, in any order."""
    target = np.array([0.2, 0.5, 0.3])
    accept, residual = outcomes(verify.TOP_K, target, (0.5, 0.3, 0.2), [children])
    output = (1 - accept.sum()) * residual[0]
    output[list(children)] += accept[0]
    np.testing.assert_allclose(output, target, atol=1e-6)
    for got, wanted in zip((accept[0], residual[0]), reference.top_k_match(target, children), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-6)


def test_repeated_child_counts_once():
    """Two identical candidates have the output law of one."""
    twice, once = (outcomes(verify.TOP_K, FALLING, RISING, [children]) for children in ((2, 2), (2, 2)[:1]))
    np.testing.assert_allclose(twice[0][0], [*once[0][0], 0.0], atol=1e-7)
    np.testing.assert_allclose(twice[1], once[1], atol=1e-7)


@st.composite
def distributions(draw, size):
    """A distribution with zeros among its entries now and then, and entries of very different sizes."""
    weights = draw(st.lists(st.sampled_from((0, 0, 1, 2, 3, 7, 50, 1e-3, 1e-6)), min_size=size, max_size=size))
    weights = np.array(weights if any(weights) else [1.0, *weights[1:]], np.float64)
    return weights / weights.sum()


@st.composite
def positions(draw):
    """A target, a draft and a number of children; of one size (zeros make it smaller), so that few shapes compile."""
    return draw(distributions(4)), draw(distributions(4)), draw(st.integers(1, 4))


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(positions())
def test_rules_are_exact(position):
    assert_rules_are_exact(*position)


def assert_rules_are_exact(target, draft, count):
    for rule in verify.RULES.values():
        checks.assert_rule_is_exact(rule, target, draft, count)


class TestTheTable:
    """A rule is a file in `verify` and a line in `RULES`; then it has a name and is enumerated."""

    def test_a_new_rule_is_enumerated(self, monkeypatch):
        class Hasty(verify.TopK):
            """Accepts whatever it proposes."""

            def outcome(self, target_probs, draft_probs, children, active, support=None):
                _, rest = super().outcome(target_probs, draft_probs, children, active, support)
                return jnp.zeros(children.shape).at[0].set(1.0), rest

        assert_rules_are_exact(FALLING, RISING, 2)
        monkeypatch.setitem(verify.RULES, "hasty", Hasty())
        np.testing.assert_allclose(verify.output_distribution("hasty", FALLING, RISING, 2), (0, 0, 0, 1), atol=1e-6)
        with pytest.raises(AssertionError):
            assert_rules_are_exact(FALLING, RISING, 2)

    def test_no_file_is_forgotten(self):
        modules = [
            importlib.import_module(f"jaxspec.verify.{one.name}") for one in pkgutil.iter_modules(verify.__path__)
        ]
        values = [value for module in modules for value in vars(module).values() if hasattr(value, "outcome")]
        assert {rule for rule in values if not isinstance(rule, type)} == set(verify.RULES.values())


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(positions())
def test_sequoia_equals_algorithm_2(position):
    """Every proposal's acceptances and what it emits otherwise, as far as their probability lets them matter."""
    target, draft, count = position
    target, draft = (np.asarray(probs, np.float32).astype(np.float64) for probs in (target, draft))
    children, weights = zip(*reference.draws(draft, count), strict=True)
    accept, residual = outcomes(verify.SEQUOIA, target, draft, children)
    for tokens, weight, got, rest in zip(children, weights, accept, residual, strict=True):
        wanted, wanted_rest = reference.sequoia(target, draft, tokens)
        np.testing.assert_allclose(weight * got, weight * wanted, atol=2e-6)
        emitted, wanted_emitted = (1 - got.sum()) * rest, (1 - wanted.sum()) * wanted_rest
        np.testing.assert_allclose(weight * emitted, weight * wanted_emitted, atol=2e-6)
        assert rest.sum() == pytest.approx(1, abs=1e-5)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(positions())
def test_fewer_active_children_are_exact_too(position):
    """The last children may be missing for SEQUOIA (later draws depend on earlier ones), any for fixed children."""
    target, draft, count = position
    for present in range(count + 1):
        active = np.arange(count) < present
        np.testing.assert_allclose(law(verify.SEQUOIA, target, draft, count, active), target, atol=1e-6)
        np.testing.assert_allclose(law(verify.TOP_K, target, draft, count, ~active), target, atol=1e-6)


def test_inactive_children_accept_nothing():
    accept, residual = outcomes(verify.SEQUOIA, FALLING, RISING, [(3, 0, 1)], [False] * 3)
    assert accept.tolist() == [[0.0] * 3]
    np.testing.assert_allclose(residual, [FALLING], atol=1e-7)


@pytest.mark.parametrize("rule", verify.RULES.values(), ids=verify.RULES)
def test_draws_are_all_proposals(rule):
    for draft in (HALF, ONE_HOT, RISING):
        for count in range(1, 5):
            proposals = list(rule.draws(np.array(draft), count))
            assert sum(probability for _, probability in proposals) == pytest.approx(1)
            assert all(len(set(tokens)) == count for tokens, _ in proposals)
    assert dict(verify.SEQUOIA.draws(np.array(HALF), 3)) == pytest.approx(dict(reference.draws(np.array(HALF), 3)))


@pytest.mark.parametrize("draft", [HALF, ONE_HOT, (0.5, 0.5, 0.0, 0.0), (0.97, 0.01, 0.01, 0.01)], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_proposals_follow_their_law(draft, count):
    """Draw order and the uniform draw from an exhausted support; 2^16 keys."""
    checks.assert_proposes_its_law(verify.SEQUOIA, draft, count)


@pytest.mark.parametrize("rule", verify.RULES.values(), ids=verify.RULES)
def test_fewer_children_are_a_prefix(rule):
    logits = jax.random.normal(jax.random.key(1), (700,)).at[5].set(-jnp.inf)
    longest, *shorter = (
        checks.proposals(rule, jax.random.split(jax.random.key(2), 64), logits, count) for count in (6, 1, 3, 5)
    )
    assert all(len(set(row)) == 6 for row in longest.tolist())
    for children in shorter:
        np.testing.assert_array_equal(children, longest[:, : children.shape[1]])


def test_low_precision_draft_is_drawn_from_what_is_tested():
    """Bfloat16 merges 1.0 and 1.003; draws follow the distribution that the test uses, which then accepts all."""
    logits = jnp.array([1.0, 1.003, 0.2, -1.0], jnp.bfloat16)
    probs = sampling.distribution(logits)
    assert probs.dtype == jnp.float32
    children = checks.proposals(verify.SEQUOIA, jax.random.split(jax.random.key(4), 2**17), logits, 1)[:, 0]
    assert reference.chi_square_excess(np.bincount(children, minlength=4), np.asarray(probs)) < 5
    accept, _ = outcomes(verify.SEQUOIA, probs, probs, [(token,) for token in range(4)])
    assert accept.tolist() == [[1.0]] * 4


@pytest.mark.parametrize("rule", verify.RULES.values(), ids=verify.RULES)
def test_disjoint_supports(rule):
    """No child can be accepted, and what is emitted has the target's law."""
    target, draft = np.array([0, 0, 0.25, 0.75]), np.array([0.5, 0.5, 0, 0])
    np.testing.assert_allclose(verify.output_distribution(rule, target, draft, 2), target, atol=1e-7)
    assert acceptance(rule, target, draft, 2).tolist() == [0, 0]


def test_residual_without_mass_is_the_target():
    """Rounding alone leads there; the target stands in, and nothing is NaN."""
    for rule in verify.RULES.values():
        accept, residual = outcomes(rule, FALLING, FALLING, [(0, 1, 2, 3)])
        assert accept.sum() == pytest.approx(1)
        assert np.isfinite(residual).all()
        assert residual.sum() == pytest.approx(1)


def test_a_child_that_is_not_there_may_be_a_token_that_the_draft_lacks():
    """The draft's support, tokens 0 and 1, is exhausted behind token 0; token 2 fills the children up."""
    target, draft = jnp.array([0.5, 0.3, 0.2]), jnp.array([1.0, 0.0, 0.0])
    children, active = jnp.array([0, 1, 2]), jnp.array([True, True, False])
    accept, rest = verify.SEQUOIA.outcome(target, draft, children, active, jnp.array([True, True, False]))
    np.testing.assert_allclose(accept, [0.5, 0.3, 0.0], atol=1e-6)
    np.testing.assert_allclose(rest, [0.0, 0.0, 1.0], atol=1e-6)
