"""Rows that join and leave between segments of rounds: each one's tokens are those that `generate` gives it."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from checks import RAGGED, logprobs, rows
from methods import of
from toys import pair

from jaxspec import decode
from jaxspec.decode import kinds, slots
from jaxspec.decode.request import Asked, checked

TARGET, DRAFT, PARAMS = pair("pos")
PLAIN = of("plain", TARGET, DRAFT)
NUM_SLOTS, CONTEXT = 3, 128

PROMPTS = [RAGGED[1], RAGGED[3], RAGGED[0], RAGGED[2], RAGGED[1], RAGGED[4]]
LIMITS = [30, 45, 4, 9, 17, 12]
ARRIVALS = [0, 0, 1, 2, 3, 5]
"""Before which segment each request comes; it joins when a slot is free."""

GREEDY, MIXED = (0, 2), (1, 3, 4, 5)
"""The requests that ask for nothing, and those with values of all kinds."""

VALUES = {
    "temperature": [0.0, 1.0, 0.0, 0.8, 0.0, 1.2],
    "top_k": [0, 0, 0, 5, 4, 0],
    "top_p": [1.0, 0.9, 1.0, 0.9, 1.0, 1.0],
    "min_p": [0.0, 0.0, 0.0, 0.01, 0.0, 0.02],
    "frequency_penalty": [0.0, 0.0, 0.0, 0.0, 0.4, 0.0],
    "presence_penalty": [0.0, 0.0, 0.0, 0.0, 0.0, 0.5],
    "repetition_penalty": [1.0, 1.0, 1.0, 1.3, 1.0, 1.0],
    "penalise_prompt": [False, False, False, False, True, True],
}
DRAFTS = [0.0, 0.5, 0.0, 0.8, 1.0, 0.0]
STOPS = [(), (), (), (2,), (), (7,)]
LEAST = [0, 0, 0, 3, 0, 2]


def values_of(*indices, names=tuple(VALUES)):
    """What requests ask for, as `generate` takes it for a batch of them; of the samplings the named values only."""
    found: dict[str, Any] = {name: [VALUES[name][index] for index in indices] for name in names}
    if len(names) > 1 and not set(indices) & set(GREEDY):
        found |= {"bias": {2: 1.5}, "bad_words": [3, [1, 5]]}
    return {
        "sampling": decode.Sampling(**found),
        "max_new_tokens": [LIMITS[index] for index in indices],
        "draft_temperature": [DRAFTS[index] for index in indices],
        "stop_ids": [STOPS[index] for index in indices],
        "min_new_tokens": [LEAST[index] if len(names) > 1 else 0 for index in indices],
        "logprobs": len(names) > 1 and not set(indices) & set(GREEDY),
    }


def key_of(index):
    return jax.random.fold_in(jax.random.key(30), index)[None]


def request_of(decoder, index, names=tuple(VALUES), **options):
    given: dict[str, Any] = {**values_of(index, names=names), "prefill_chunk": 8, **options}
    return checked(decoder, PARAMS, [PROMPTS[index]], key_of(index), Asked(**given))


class Served:
    """A batch, and what it gave each request."""

    def __init__(self, decoder, first_slots=64, context=CONTEXT):
        self.batch = slots.Slots(decoder, PARAMS, NUM_SLOTS, context, first_slots)
        self.owner, self.tokens, self.logprobs, self.last = {}, {}, {}, {}

    def read(self, request):
        reading = self.batch.begin(request)
        while not reading.is_done:
            reading = self.batch.read(reading)
        return reading

    def join(self, name, reading, sample=0):
        self.owner[self.batch.join(reading, sample)] = name
        self.tokens[name], self.logprobs[name] = [], []

    def advance(self, max_rounds):
        for one in self.batch.advance(max_rounds):
            name = self.owner[one.slot]
            self.tokens[name] += one.tokens
            self.logprobs[name] += one.logprobs
            self.last[name] = one

    @property
    def is_empty(self):
        return self.batch.num_free == NUM_SLOTS


@pytest.mark.parametrize("method", ["plain", "tree", "specbranch"])
def test_rows_that_come_and_go_have_the_tokens_of_generate(method):
    """Joined at different rounds, one of them taken out; the kind of options changes below the rows."""
    decoder = of(method, TARGET, DRAFT)
    names = tuple(VALUES) if method == "plain" else ("temperature",)  # the others' programs are large
    served, step, waiting = Served(decoder, first_slots=CONTEXT), 0, [*range(6)]
    while waiting or not served.is_empty:
        while waiting and ARRIVALS[waiting[0]] <= step and served.batch.num_free:
            served.join(waiting[0], served.read(request_of(decoder, waiting.pop(0), names)))
        served.advance(2)
        if step == 2:  # the first one's reader has gone
            served.batch.leave(slot for slot, index in served.owner.items() if index == 0)
        step += 1
    for index in GREEDY:
        wanted = reference.greedy(TARGET, PARAMS["target"], PROMPTS[index], LIMITS[index], ())
        assert served.tokens[index] == wanted[: len(served.tokens[index]) if index == 0 else None]
    assert 0 < len(served.tokens[0]) < LIMITS[0]
    for batch in ((1, 3, 4), (4, 5, 3)):
        keys = jnp.concatenate([key_of(index) for index in batch])
        prompts, values = [PROMPTS[index] for index in batch], values_of(*batch, names=names)
        wanted = decode.generate(decoder, PARAMS, prompts, key=keys, **values)
        for row, index in enumerate(batch):
            last, tokens = served.last[index], rows(wanted)[row]
            assert served.tokens[index] == tokens
            assert last.finish_reason == wanted.finish_reason[row]
            assert last.rounds == wanted.stats.rounds[row]
            assert last.drafted == wanted.stats.counts.drafted[row]
            np.testing.assert_array_equal(last.accepted_lengths, wanted.stats.counts.accepted_lengths[row])
            if method == "plain":
                np.testing.assert_allclose(served.logprobs[index], logprobs(wanted)[row, : len(tokens)], atol=1e-5)
    assert [index for index, kept in served.logprobs.items() if kept] == ([*MIXED] if method == "plain" else [])


def test_samples_share_their_reading():
    """They join from one reading when there is room, and are the samples of `generate`."""
    given: dict[str, Any] = {"sampling": decode.Sampling(1.0), "max_new_tokens": 12, "num_samples": 5}
    request = checked(PLAIN, PARAMS, [RAGGED[2]], jax.random.key(7), Asked(**given, logprobs=False))
    served, started = Served(PLAIN), 0
    reading = served.read(request)
    while started < 5 or not served.is_empty:
        while started < 5 and served.batch.num_free:
            served.join(started, reading, started)
            started += 1
        served.advance(5)
    wanted = decode.generate(PLAIN, PARAMS, [RAGGED[2]], key=jax.random.key(7), **given)
    assert [served.tokens[sample] for sample in range(5)] == rows(wanted)


def test_the_room_grows_and_shrinks():
    """A long row makes the batch dear as long as it is there; the others stay as they were."""
    served = Served(PLAIN, context=400)
    prompt = [token % 11 for token in range(250)]
    values: dict[str, Any] = {"max_new_tokens": 30, "logprobs": True}
    served.join("short", served.read(checked(PLAIN, PARAMS, [RAGGED[1]], key_of(1), Asked(**values))))
    served.advance(2)
    assert served.batch.capacity == 64
    long = checked(PLAIN, PARAMS, [prompt], key_of(0), Asked(max_new_tokens=9, logprobs=False))
    served.join("long", served.read(long))
    served.advance(10)  # until a round has no room
    assert served.batch.capacity == 256
    served.advance(10)
    assert (served.batch.capacity, served.batch.size) == (512, 3)
    assert served.last["long"].finish_reason == "length"
    served.advance(1)
    assert (served.batch.capacity, served.batch.size) == (128, 1)
    served.advance(30)
    assert served.tokens["long"] == reference.greedy(TARGET, PARAMS["target"], prompt, 9, ())
    wanted = decode.generate(PLAIN, PARAMS, [RAGGED[1]], key=key_of(1), **values)
    assert served.tokens["short"] == rows(wanted)[0]
    np.testing.assert_allclose(served.logprobs["short"], logprobs(wanted)[0], atol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 100}, r"come to 131 tokens, but rows have at most 128"),
        ({"stop_ids": [*range(11)] + [0] * 6}, r"17 stop ids; a row has at most 16"),
        ({"sampling": decode.Sampling(bad_words=[[1, 2, token % 11, 4] for token in range(40)])}, r"40 banned words"),
        ({"sampling": decode.Sampling(bad_words=[[1] * 9])}, r"1 banned words of up to 9 tokens"),
    ],
)
def test_what_does_not_fit_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Served(PLAIN).batch.check(request_of(PLAIN, 1, **options))


def test_sizes_are_few():
    assert [slots.sizes(count) for count in (1, 3, 8, 16)] == [(1,), (1, 3), (1, 4, 8), (1, 4, 16)]


def test_values_that_change_nothing():
    """Options of the widest kind that nobody asked for, and words that are filled up to its shapes."""
    words = decode.Sampling(bad_words=[3, [1, 5], *([token, 2, 2] for token in range(6))])
    request = checked(PLAIN, PARAMS, [[1]], key_of(0), Asked(max_new_tokens=9, sampling=words))
    dense = kinds.words_of(request)
    assert dense.shape == (1, kinds.MOST_WORDS, kinds.LONGEST_WORD)
    assert [[int(token) for token in word if token >= 0] for word in dense[0, :3]] == [[3], [1, 5], [0, 2, 2]]
    assert (dense[0, 8:] == -1).all()
    assert kinds.kind_of(request) == kinds.Kind(has_adjustments=True, has_logprobs=True)
    found = kinds.free(kinds.Kind(True, True, True, True), 11)
    assert found.is_greedy is not None
    assert found.penalties is not None
    assert found.is_greedy.all()
    assert found.penalties.repetition.item() == 1
    assert not kinds.least(PLAIN, PARAMS).is_sampled
    assert kinds.least(of("specbranch", TARGET, DRAFT), PARAMS).is_sampled
