"""What options read of a text: against the slow twin, in part of a vocabulary too, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from jaxspec import sampling
from jaxspec.sampling import Sampling

VOCAB = 11
ROWS = [
    {"frequency_penalty": 0.7, "bias": [0.5, *[0.0] * 10]},
    {"presence_penalty": -1.5, "penalise_prompt": True, "bias": [*[0.0] * 10, -np.inf]},
    {"repetition_penalty": 1.8, "penalise_prompt": True, "bad_words": [[4], [3, 5], [7, 8, 6, 5, 1], [9, 2]]},
    {"frequency_penalty": -0.2, "repetition_penalty": 0.6, "min_new_tokens": 4, "bad_words": [[0, 9, 2], [5, 1]]},
]
TEXT, NEW, STOPS = [9, 7, 8, 6], [5, 2, 5], [3, 7]
"""A prompt, and tokens of which the first are in the row and the others in flight."""


def options_of() -> sampling.Options:
    def values(name, neutral):
        return [row.get(name, neutral) for row in ROWS]

    wanted = Sampling(
        bias=np.array(values("bias", [0.0] * VOCAB)),
        frequency_penalty=values("frequency_penalty", 0.0),
        presence_penalty=values("presence_penalty", 0.0),
        repetition_penalty=values("repetition_penalty", 1.0),
        penalise_prompt=values("penalise_prompt", False),
        bad_words=values("bad_words", []),
    )
    return sampling.options(wanted, None, len(ROWS), VOCAB, values("min_new_tokens", 0))


@jax.jit
def adjusted(options, text, num_tokens, in_flight, count, logits):
    """`[B, V]` adjusted logits of all tokens and `[B, P]` of some, behind `count` tokens in flight."""

    def one(options):
        past = sampling.past_of(
            options.penalties,
            options.min_new_tokens,
            options.bad_words,
            text,
            num_tokens,
            jnp.int32(len(TEXT)),
            jnp.array([*STOPS, -1, -1]),
            VOCAB,
        )
        assert past is not None
        options = options._replace(past=sampling.behind(past, in_flight, count))
        return sampling.adjust(options, logits), sampling.adjust(options, logits[KEPT], KEPT)

    return jax.vmap(one)(options)


KEPT = np.array([0, 1, 2, 5, 7, 10])


@pytest.mark.parametrize("num_committed", [0, 1, 3])
def test_adjusted_logits_are_those_of_the_twin(num_committed):
    """Whether the new tokens are in the row or in flight, and what lies behind either, changes nothing."""
    logits = np.random.default_rng(num_committed).normal(0, 2, VOCAB).astype(np.float32)
    committed, count = [*TEXT, *NEW[:num_committed]], len(NEW) - num_committed
    row = np.array([*committed, *[1] * (12 - len(committed))], np.int32)
    in_flight = np.array([*NEW[num_committed:], *[6] * (5 - count)], np.int32)
    found, some = adjusted(
        options_of(), row, jnp.int32(len(committed)), in_flight, jnp.int32(count), jnp.asarray(logits)
    )
    for index, options in enumerate(ROWS):
        wanted = reference.adjusted(logits, [*TEXT, *NEW], len(TEXT), stop_ids=STOPS, **options)
        np.testing.assert_allclose(found[index], wanted, rtol=1e-5)
        np.testing.assert_array_equal(some[index], found[index][KEPT])


def test_what_reads_no_text_is_absent():
    assert sampling.options(Sampling(1.0), None, 2, 4)[-4:] == (None,) * 4
    neutral = Sampling(frequency_penalty=[0.0, 0.0], repetition_penalty=1, penalise_prompt=True, bad_words=[[], []])
    assert sampling.options(neutral, None, 2, 4)[-4:] == (None,) * 4
    used = sampling.options(Sampling(presence_penalty=[0.0, 1.0]), None, 2, 4)
    assert used.penalties is not None
    assert used.past is None
    with pytest.raises(AssertionError, match="reading or behind"):
        sampling.adjust(jax.tree.map(lambda leaf: leaf[0], used), jnp.zeros(4))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"frequency_penalty": np.inf}, "frequency_penalty=inf"),
        ({"presence_penalty": -1e39}, r"presence_penalty=-1e\+39 is out of range: it must be finite in float32"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0"),
        ({"repetition_penalty": -1.0}, "at least 0"),
        ({"temperature": 1e39}, r"temperature=1e\+39.*finite in float32"),
        ({"temperature": [[1.0], [1.0, 2.0]]}, "each of the 2 rows"),
        ({"penalise_prompt": "yes"}, "not True or False"),
        ({"bad_words": "no"}, "bad_words='no'"),
        ({"bad_words": [4]}, "bad_words names token 4.*0 to 3"),
        ({"bad_words": [1.5]}, "bad_words names token 1.5"),
        ({"bad_words": [[1, True]]}, "names token True"),
        ({"bad_words": [3, []]}, "empty word"),
        ({"bad_words": [[[1]], [[2]], [[3]]]}, "3 lists of words for 2 rows"),
        ({"bad_words": [0, 1, 2, 3]}, "every token"),
        ({"bias": {"a": 1.0}}, "bias names token 'a'"),
        ({"bias": {1: "a"}}, "bias has 'a' for token 1"),
        ({"bias": "abc"}, "bias is str"),
        ({"bias": {1: 1e39}}, r"NaN or \+inf"),
    ],
)
def test_values_that_cannot_be(values, message):
    """What float32 makes of a value is what is looked at."""
    with pytest.raises(ValueError, match=message):
        sampling.options(Sampling(**values), None, 2, 4)


@pytest.mark.parametrize("value", [1e-38, 1e-45, 1e-300, 0.0])
def test_a_temperature_that_float32_cannot_hold_is_greedy(value):
    """On the host and on the device: below the smallest normal number, which devices take for 0."""
    assert sampling.options(Sampling(value), None, 1, 3).temperature is None
    mixed = sampling.options(Sampling([value, 1.0]), None, 2, 3)
    assert mixed.is_greedy is not None
    assert mixed.is_greedy.tolist() == [True, False]
    assert mixed.temperature is not None
    assert mixed.temperature.tolist() == [0.0, 1.0]
