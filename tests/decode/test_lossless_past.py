"""Options that read the text: penalties, banned words and least lengths, under every method.

Their values are traced, so that one program of a method serves all cases: each row of a batch has its own.
"""

import dataclasses
from typing import Any

import numpy as np
import pytest
import reference
from checks import KEY, RAGGED, rows, run
from laws import MODEL, PARAMS, TARGET
from methods import of
from toys import pair

from jaxspec import decode, tree
from jaxspec.decode.branches.decoder import BranchDecoder
from jaxspec.decode.branches.drafter import BranchDrafter
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.static import StaticTree

STOPS = (2, 7)
ROWS: list[dict[str, Any]] = [
    {"frequency_penalty": 0.7, "min_new_tokens": 5},
    {"presence_penalty": 1.5, "penalise_prompt": True, "min_new_tokens": 20},
    {"repetition_penalty": 1.8, "penalise_prompt": True, "bad_words": [[4], [3, 5]]},
    {"frequency_penalty": -0.2, "repetition_penalty": 1.3, "min_new_tokens": 30, "bad_words": [[9, 9], [1, 6, 0]]},
    {"frequency_penalty": 0.4, "presence_penalty": -0.3, "min_new_tokens": 12, "bad_words": [[9], [0, 8]]},
]
"""The options of each of the prompts `RAGGED`; the fourth's and the fifth's have tokens that are penalised."""

NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "penalise_prompt": False}


def asked(options: list[dict[str, Any]], temperature: float = 0.0) -> dict[str, Any]:
    """The keywords of `generate` for rows with these options."""
    penalties: Any = {name: [row.get(name, value) for row in options] for name, value in NEUTRAL.items()}
    words = [row.get("bad_words", []) for row in options]
    return {
        "sampling": decode.Sampling(temperature, bad_words=words, **penalties),
        "min_new_tokens": [row.get("min_new_tokens", 0) for row in options],
        "logprobs": False,
    }


def assert_greedy(decoder, params, options=ROWS, count=34) -> decode.Generation:
    generation = run(decoder, params, RAGGED, count, stop_ids=STOPS, **asked(options))
    target = decoder.models["target"][0]
    for prompt, tokens, row in zip(RAGGED, rows(generation), ROWS, strict=True):
        assert tokens == reference.greedy_text(target, params["target"], prompt, count, stop_ids=STOPS, **row)
    return generation


LAWS: list[dict[str, Any]] = [
    {"frequency_penalty": 0.9, "repetition_penalty": 1.5, "min_new_tokens": 2, "bad_words": [[2, 2], [0, 0, 1]]},
    {"presence_penalty": 1.2, "frequency_penalty": -0.4, "penalise_prompt": True, "bad_words": [[1, 1]]},
]
PROMPT, STOP, COUNT = [2, 0], 1, 4


def assert_law(decoder, params=PARAMS, options=LAWS, num_rows=2**13) -> None:
    """The joint law of up to four tokens, by every path with its counts; half of the rows have each of the options."""
    pattern = asked([row for row in options for _ in range(num_rows)], 1.0)
    generation = run(decoder, params, [PROMPT] * (2 * num_rows), COUNT, stop_ids=[STOP], **pattern)
    texts = [tuple(text) for text in rows(generation)]
    for half, row in enumerate(LAWS):
        law = reference.text_law(TARGET, PROMPT, COUNT, stop_ids=[STOP], **row)
        found = texts[half * num_rows : (half + 1) * num_rows]
        counts = np.array([found.count(text) for text in law])
        assert counts.sum() == num_rows, "a text that cannot be"
        excess = reference.chi_square_excess(counts, np.array([*law.values()]))
        assert excess < 5, f"chi-square {excess:.1f} standard deviations above its mean"


@pytest.mark.parametrize("method", ["plain", "tree", "specbranch"])
def test_greedy_tokens(method):
    target, draft, params = pair("pos")
    counts = assert_greedy(of(method, target, draft), params).stats.total().counts
    assert method == "plain" or counts.accepted > 20


@pytest.mark.parametrize("method", ["plain", "tree", "topk", "adaedl", "specbranch"])
def test_joint_law(method):
    assert_law(of(method, MODEL))


@pytest.mark.parametrize("method", ["chain", "tree", "adaedl", "specbranch"])
def test_a_draft_that_is_the_target_is_always_right(method):
    """It reads the same counts, its own drafted tokens among them."""
    target, draft, params = pair("pos")
    generation = assert_greedy(of(method, target, draft), {**params, "draft": params["target"]})
    np.testing.assert_array_equal(generation.stats.counts.rejections, 0)


@dataclasses.dataclass(frozen=True)
class ForgetsTheDrafted(TreeDecoder):
    """The counts of a node are those of the row: its own token and its ancestors' do not count."""

    def _at_node(self, row, drafted, node):
        return row


@dataclasses.dataclass(frozen=True)
class ForgetsThePending(BranchDrafter):
    """The same along a line."""

    def at_place(self, row, line, place):
        return row


BINARY = tree.k_ary(2, 2)


def test_counts_that_forget_the_drafted_are_rejected():
    target, draft, params = pair("pos")
    for decoder in (
        ForgetsTheDrafted(target, StaticTree(target, draft, BINARY)),
        BranchDecoder(ForgetsThePending(target, draft, 3, 2)),
    ):
        with pytest.raises(AssertionError):
            assert_greedy(decoder, params)
    with pytest.raises(AssertionError, match=r"chi-square|cannot be"):
        assert_law(ForgetsTheDrafted(MODEL, StaticTree(MODEL, MODEL, BINARY)))


@pytest.mark.parametrize("change", [{"penalise_prompt": True}, {"penalise_prompt": False}, {"bad_words": []}])
def test_what_is_counted_matters(change):
    """The prompt counted by mistake, or forgotten; words that are not looked for."""
    with pytest.raises(AssertionError):
        assert_greedy(of("plain", pair("pos").target), pair("pos").params, [{**row, **change} for row in ROWS])
    with pytest.raises(AssertionError, match=r"chi-square|cannot be"):
        assert_law(of("plain", MODEL), options=[{**row, **change} for row in LAWS])


def test_values_compile_nothing_and_streams_follow():
    """The stream of a batch is its generation; room that grows changes nothing."""
    target, draft, params = pair("pos")
    whole = assert_greedy(of("tree", target, draft), params)
    options = {"key": KEY, "max_new_tokens": 34, "stop_ids": STOPS, **asked(ROWS)}
    options.pop("logprobs")
    chunks = list(decode.stream(of("tree", target, draft), params, RAGGED, first_capacity=64, **options))
    assert [[token for chunk in chunks for token in chunk[row]] for row in range(len(RAGGED))] == rows(whole)
