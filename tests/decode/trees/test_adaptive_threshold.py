"""AdaEDL stops where the formula says, adapts as the formula says, and counts what it drafted."""

import dataclasses
import functools

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from adapting import ALWAYS, BRISK, CTX, DRAFT, MIXED, MODEL, NEVER, PARAMS, bound, logged, new_tokens, of_pair, total
from checks import PROMPTS
from toys import CtxLM, TableLM, noisy, pair

from jaxspec.decode.request import Asked, checked
from jaxspec.decode.state import round_key
from jaxspec.decode.trees.adaptive import AdaEDL, adaedl
from jaxspec.sampling import Sampling


@dataclasses.dataclass
class Twin:
    """AdaEDL's control of a row, literally."""

    threshold: float
    max_length: int
    target_acceptance: float
    step: float
    acceptance_memory: float
    threshold_memory: float

    def __post_init__(self):
        self.acceptance = self.target_acceptance

    def length(self, table, token):
        """How many tokens a greedy draft proposes behind `token`."""
        for drafted in range(1, self.max_length):
            token = int(np.argmax(table[token]))
            if bound(reference.distribution(table[token])) < self.threshold:
                return drafted
        return self.max_length

    def update(self, num_drafted, num_accepted):
        share = num_accepted / num_drafted
        self.acceptance = self.acceptance_memory * self.acceptance + (1 - self.acceptance_memory) * share
        wanted = self.threshold
        if self.acceptance < self.target_acceptance:
            wanted = self.threshold + self.step
        elif num_accepted != self.max_length:
            wanted = self.threshold - self.step
        self.threshold = self.threshold_memory * self.threshold + (1 - self.threshold_memory) * wanted


def test_threshold_adapts_as_the_twin_does():
    """Rows of unequal lengths: the lengths of all chains, and threshold and acceptance after every round."""
    params = pair("table").params
    rounds, state = logged(of_pair("table", 5, threshold=0.6, **BRISK), params, count=[60, 17, 44, 3])
    table = np.asarray(params["draft"]["table"], np.float64)
    twins = [Twin(0.6, 5, **BRISK) for _ in PROMPTS]
    lengths, moves = set(), set()
    for row, memory, info in rounds:
        for i in np.flatnonzero(~row.is_finished):
            twin = twins[i]
            np.testing.assert_allclose(memory.value[i], twin.threshold, atol=1e-5)
            np.testing.assert_allclose(memory.acceptance[i], twin.acceptance, atol=1e-5)
            assert info.num_drafted[i] == twin.length(table, row.tokens[i, row.num_tokens[i] - 1])
            twin.update(info.num_drafted[i], info.num_accepted[i])
            lengths.add(int(info.num_drafted[i]))
            moves.add(np.sign(twin.threshold - memory.value[i]))
    limits = total(rounds, "num_emitted").tolist()
    assert limits == [60, 17, 44, 3]
    target = pair("table").target, params["target"]
    assert new_tokens(state) == [reference.greedy(*target, *each) for each in zip(PROMPTS, limits, strict=True)]
    assert len(lengths) > 2
    assert moves >= {1.0, -1.0}


def test_all_branches_of_the_adaptation():
    """λ rises below the target acceptance, falls above it, and stays when the whole chain was accepted."""
    decoder = adaedl(MODEL, MODEL, 4, threshold=0.5)
    memory = decoder.init({}, row_of(decoder)).memory
    assert isinstance(decoder.drafter, AdaEDL)
    assert (float(memory.value), float(memory.acceptance)) == (0.5, pytest.approx(0.9))
    for drafted, accepted, threshold, acceptance in ((4, 2, 0.501, 0.7), (3, 3, 0.499, 0.95), (4, 4, 0.5, 0.95)):
        adapted = decoder.drafter.adapt(memory, jnp.int32(drafted), jnp.int32(accepted))
        assert float(adapted.value) == pytest.approx(threshold, abs=1e-6)
        assert float(adapted.acceptance) == pytest.approx(acceptance, abs=1e-6)
    assert decoder.drafter.adapt(memory, jnp.int32(0), jnp.int32(0)) == memory


def row_of(decoder):
    request = checked(decoder, PARAMS, [[0]], checks.KEY, Asked(max_new_tokens=8, logprobs=False))
    return jax.tree.map(lambda leaf: leaf[0], request.rows(64))


def test_finished_rows_keep_their_threshold():
    rounds, state = logged(CTX, pair("ctx").params, count=[40, 2, 2, 2])
    finished = [memory for row, memory, _ in rounds if row.is_finished[1]]
    assert len(finished) > 5
    for memory in finished:
        assert (memory.value[1], memory.acceptance[1]) == (state.memory.value[1], state.memory.acceptance[1])
    assert finished[0].value[0] != state.memory.value[0]


@functools.partial(jax.jit, static_argnums=0)
def drafts(decoder, rows):
    """The drafts of a batch's first round behind prompts of one token."""
    return jax.vmap(lambda row: decoder.drafter.draft_tree(PARAMS, decoder.init(PARAMS, row), round_key(row)))(rows)


@pytest.mark.parametrize(("temperature", "draft_temperature"), [(0.0, None), (1.0, None), (1.0, 0.3), (0.7, 0.0)])
def test_the_stop_is_where_the_formula_says(temperature, draft_temperature):
    """Of 64 rows' drafts: each token behind the first had its bound at temperature 1, and the one that lacks had not.

    A bias is part of the distribution.
    """
    bias = np.array([0.0, -1.5, 0.0])
    decoder = adaedl(MODEL, MODEL, 5, threshold=0.6)
    prompts, options = [[token % 3] for token in range(64)], Sampling(temperature, bias=bias)
    asked = Asked(max_new_tokens=8, sampling=options, draft_temperature=draft_temperature, logprobs=False)
    request = checked(decoder, PARAMS, prompts, checks.KEY, asked)
    drafted = drafts(decoder, request.rows(64))
    bounds = bound(reference.distribution(np.log(DRAFT), bias=bias))
    assert (bounds < 0.6).any()
    assert (bounds > 0.6).any()
    lengths = drafted.is_active.sum(axis=1)
    for tokens, is_active, length in zip(drafted.tokens.tolist(), drafted.is_active, lengths.tolist(), strict=True):
        assert is_active.tolist() == [False] + [True] * length + [False] * (5 - length)
        assert length >= 1
        assert (bounds[tokens[1:length]] >= 0.6).all()
        assert length == 5 or bounds[tokens[length]] < 0.6
    assert len(set(lengths.tolist())) > 1


def test_entropy_with_impossible_tokens():
    """A distribution of one token has no entropy, and banned tokens count nothing."""
    decoder = adaedl(TableLM(4), TableLM(4), 3, threshold=0.7)
    state = decoder.init({}, row_of(adaedl(MODEL, MODEL, 3)))
    logits = jnp.log(jnp.array([[1.0, 0, 0, 0], [0.9, 0.1, 0, 0], [0.5, 0.5, 0, 0], [0.25] * 4]))
    assert isinstance(decoder.drafter, AdaEDL)
    confident = jax.vmap(functools.partial(decoder.drafter.goes_on, state))(logits)
    assert confident.tolist() == [True, True, False, False]


def test_draft_steps_stop():
    """The draft runs as often as the longest row needs it: counted by a callback of its forward."""
    calls = []

    @dataclasses.dataclass(frozen=True)
    class Counted(TableLM):
        def logits(self, params, tokens, positions, context, block, mask):
            if tokens.shape[0] == 1 and block.shape[0] > 1:  # a step below the root
                jax.debug.callback(lambda token: calls.append(int(token)), tokens[0])
            return super().logits(params, tokens, positions, context, block, mask)

    decoder = adaedl(MODEL, Counted(3), 6, threshold_memory=1.0)
    for threshold in (NEVER, 0.6, ALWAYS):
        calls.clear()
        rounds, _ = logged(decoder, PARAMS, [[0]], 12, threshold=threshold)
        jax.effects_barrier()
        drafted = total(rounds, "num_drafted")[0]
        if threshold == NEVER:
            assert (drafted, len(calls)) == (6 * len(rounds), 5 * len(rounds))
        else:  # each chain was stopped by its entropy, one step behind its last token
            assert len(calls) == drafted < 6 * len(rounds)


@pytest.mark.parametrize("options", [{}, MIXED], ids=["greedy", "mixed"])
def test_counts_add_up(options):
    """Only drafted tokens count, and what was not drafted can't be rolled back."""
    limits = [20, 9, 14, 3]
    rounds, _ = logged(CTX, pair("ctx").params, count=limits, **options)
    np.testing.assert_array_equal(total(rounds, "num_emitted"), limits)
    assert len({int(count) for _, _, info in rounds for count in info.num_drafted}) > 2
    for row, _, info in rounds:
        np.testing.assert_array_equal(info.path_drafted, info.num_drafted)
        np.testing.assert_array_equal(info.path_rolled_back, info.num_drafted - info.num_accepted)
        left = row.prompt_length + row.max_new_tokens - row.num_tokens
        is_whole = ~row.is_finished & (info.num_accepted < left)  # the limit cut nothing before the last position
        is_short = info.num_accepted < info.num_drafted
        np.testing.assert_array_equal(info.is_rejected, is_whole & is_short)
        tested = np.minimum(info.num_accepted + 1, info.num_drafted)
        np.testing.assert_array_equal(info.is_visited.sum(axis=1)[is_whole], tested[is_whole])


def test_draft_of_limited_length():
    """Behind the draft's last position nothing is drafted and the threshold rests."""
    target, params = CtxLM(11, max_length=64), pair("ctx").params
    params = {"target": params["target"], "draft": noisy(params["target"], 0.1)}
    decoder = adaedl(target, CtxLM(11, max_length=16), 3, threshold=NEVER)
    prompts = [PROMPTS[0], PROMPTS[2]]
    rounds, state = logged(decoder, params, prompts, 40)
    assert new_tokens(state) == [reference.greedy(target, params["target"], prompt, 40) for prompt in prompts]
    for row, memory, info in rounds:
        room = np.clip(16 - (row.num_tokens - 1), 0, 3)
        np.testing.assert_array_equal(info.num_drafted, np.where(row.is_finished, 0, room))
        assert (~info.is_rejected | (info.num_accepted < info.num_drafted)).all()
        is_behind = room == 0
        np.testing.assert_array_equal(memory.acceptance[is_behind], state.memory.acceptance[is_behind])
