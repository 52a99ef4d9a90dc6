"""AdaEDL: exact whatever stops it, stops where the formula says, and adapts as the formula says."""

import dataclasses
import functools
import math

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from checks import PROMPTS, assert_greedy_equals_reference, assert_joint_law, run, steps
from test_compile import equations, program, vocabulary_work, wide_vocabulary
from test_derived import KeptTableLM
from toys import CtxLM, TableLM, WideLM, pair

from jaxspec import decode, tree
from jaxspec.decode import loop, stats
from jaxspec.decode.request import Asked, checked
from jaxspec.decode.state import round_key
from jaxspec.decode.trees.adaptive import AdaEDL, adaedl
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.static import StaticTree
from jaxspec.sampling import Sampling

MODEL = TableLM(3)
TARGET = np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.35, 0.5, 0.15]])
DRAFT = np.array([[0.15, 0.8, 0.05], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4]])
"""Bounds of .65, .57 and .53: a threshold of .6 goes on after token 0 only, one of .55 after 0 and 1."""

BRISK = {"step": 0.15, "threshold_memory": 0.5, "acceptance_memory": 0.3, "target_acceptance": 0.6}
"""A threshold that moves by up to .075 a round, so that a few rounds cross the bounds."""

NEVER, ALWAYS = -math.inf, 1.5


def tables(target, draft):
    with np.errstate(divide="ignore"):
        return {
            name: {"table": jnp.asarray(np.log(probs), jnp.float32)}
            for name, probs in (("target", target), ("draft", draft))
        }


PARAMS = tables(TARGET, DRAFT)


def bound(probs, entropy_factor=0.2):
    """The paper's bound, in float64."""
    probs = np.asarray(probs, np.float64)
    positive = np.where(probs > 0, probs, 1.0)
    return 1 - np.sqrt(entropy_factor * -(probs * np.log(positive)).sum(axis=-1))


def of_pair(name, max_length=4, **options):
    return adaedl(pair(name).target, pair(name).draft, max_length, **options)


CTX = of_pair("ctx", threshold=0.46)
"""One decoder for most tests: its threshold is part of the state, so that other thresholds compile nothing."""
POS, TINY = of_pair("pos", threshold=0.6), of_pair("tiny", threshold=0.24)

MIXED = {"sampling": Sampling([0.0, 1.0, 0.0, 0.7]), "logprobs": False}


def logged(decoder, params, prompts=PROMPTS, count=20, threshold=None, **options):
    """Rounds by the step API: rows and memory before each, and its report; then the last state.

    Args:
        threshold: Replaces that of the first round.
    """
    memories = []

    def begin(state):
        if threshold is not None and not memories:
            value = jnp.full_like(state.memory.value, threshold)
            state = state._replace(memory=state.memory._replace(value=value))
        memories.append(jax.tree.map(np.array, state.memory))
        return state

    state, reports = steps(decoder, params, prompts, count, change=begin, **options)
    return [(row, memory, info) for (row, info), memory in zip(reports, memories, strict=True)], state


def new_tokens(state):
    row = state.row
    return [
        row.tokens[i, start:stop].tolist()
        for i, (start, stop) in enumerate(zip(row.prompt_length, row.num_tokens, strict=True))
    ]


def total(rounds, name):
    """`[B]` sums of a field of the reports."""
    return sum(getattr(info, name).astype(int) for _, _, info in rounds)


LAW = adaedl(MODEL, MODEL, 3, threshold=0.56, **BRISK)


@pytest.mark.parametrize(("temperature", "draft_temperature"), [(1.0, None), (0.7, 0.0)])
def test_joint_law(temperature, draft_temperature):
    """Chains that stop at some tokens and not at others, over two to four rounds, while the threshold moves."""
    options = {"sampling": Sampling(temperature), "draft_temperature": draft_temperature}
    law = reference.distribution(np.log(TARGET), temperature=temperature)
    assert_joint_law(LAW, PARAMS, law, 4, 0.02, **options)


@dataclasses.dataclass(frozen=True)
class DropsUnlikelyTokens(AdaEDL):
    """Stops at a token that was drawn with a low probability, and drops it (papers.md 2.2)."""

    def draft_tree(self, params, state, key):
        drafted = super().draft_tree(params, state, key)
        drawn = jnp.take_along_axis(drafted.probs, drafted.tokens[1:, None], axis=1)[:, 0]
        is_kept = jnp.cumprod((drawn > 0.3).at[0].set(True)).astype(bool)
        return drafted._replace(is_active=drafted.is_active & jnp.append(True, is_kept))


def test_deciding_from_the_drawn_token_is_rejected():
    """The first token is never dropped, and still the law is wrong."""
    drafter = DropsUnlikelyTokens(StaticTree(MODEL, MODEL, tree.chain(3)), threshold=NEVER)
    with pytest.raises(AssertionError, match="total variation"):
        assert_joint_law(TreeDecoder(MODEL, drafter), PARAMS, TARGET, 4, 0.02, num_keys=2)


def test_joint_law_of_a_reduced_and_limited_draft():
    """Tokens that the draft can't propose, and a last position of it within the text, behind which it drafts none."""
    target = np.array([[0.4, 0.3, 0.1, 0.2], [0.1, 0.3, 0.4, 0.2], [0.25, 0.25, 0.25, 0.25], [0.1, 0.5, 0.2, 0.2]])
    draft = np.array([[0.8, 0.0, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.3, 0.1], [0.1, 0.2, 0.7, 0.0]])
    decoder = adaedl(TableLM(4), KeptTableLM(4, max_length=2), 3, threshold=0.6)
    assert_joint_law(decoder, tables(target, draft), target, 3, 0.02, num_keys=2)


@pytest.mark.parametrize("decoder", [CTX, TINY], ids=["ctx", "tiny"])
def test_greedy_tokens(decoder):
    """Ragged prompts; thresholds at which the pair's chains have several lengths."""
    generation = assert_greedy_equals_reference(decoder, pair("ctx" if decoder == CTX else "tiny").params)
    counts = generation.stats.total().counts
    assert counts.rounds < counts.drafted < 4 * counts.rounds
    assert 0 < counts.accepted < counts.drafted


def test_greedy_tokens_of_one_prompt():
    for prompt in PROMPTS:
        assert_greedy_equals_reference(POS, pair("pos").params, [prompt])


def test_rows_do_not_depend_on_their_batch():
    """Rows draft on beside others that have stopped."""
    params, keys = pair("ctx").params, jax.random.split(jax.random.key(3), 4)
    options = {**MIXED, "sampling": Sampling([0.8] * 4)}
    rounds, together = logged(CTX, params, key=keys, **options)
    assert len({tuple(info.num_drafted) for _, _, info in rounds}) > 2
    for row in (1, 3):
        alone_rounds, alone = logged(CTX, params, [PROMPTS[row]] * 4, key=jnp.stack([keys[row]] * 4), **options)
        assert new_tokens(alone) == [new_tokens(together)[row]] * 4
        assert total(alone_rounds, "num_drafted")[0] == total(rounds, "num_drafted")[row]


def said(info):
    """A report without what stands behind the emitted tokens and at nodes that were not visited."""
    is_emitted = np.arange(info.tokens.shape[1]) < np.asarray(info.num_emitted)[:, None]
    return info._replace(tokens=info.tokens * is_emitted, accept=info.accept * info.is_visited[..., None])


def test_a_threshold_that_never_stops_is_the_plain_chain():
    """The same tokens, keys and reports, for greedy and sampled rows."""
    params = pair("ctx").params
    chain = decode.speculative(CTX.target, pair("ctx").draft, 4)
    chain_state, chain_reports = steps(chain, params, PROMPTS, **MIXED)
    rounds, state = logged(CTX, params, threshold=NEVER, **MIXED)
    assert new_tokens(state) == new_tokens(chain_state)
    for (_, _, info), (_, chain_info) in zip(rounds, chain_reports, strict=True):
        jax.tree.map(np.testing.assert_array_equal, said(info), said(chain_info))
    assert np.isneginf(state.memory.value).all()
    for row, _, info in logged(CTX, params, threshold=NEVER)[0]:
        np.testing.assert_array_equal(info.num_drafted, np.where(row.is_finished, 0, 4))


@pytest.mark.parametrize("options", [{}, MIXED], ids=["greedy", "mixed"])
def test_a_threshold_above_one_drafts_one_token_a_round(options):
    rounds, state = logged(CTX, pair("ctx").params, threshold=ALWAYS, **options)
    for row, _, info in rounds:
        np.testing.assert_array_equal(info.num_drafted, ~row.is_finished)
        np.testing.assert_array_equal(info.path_drafted, ~row.is_finished)
    for row in (0, 2):
        assert new_tokens(state)[row] == reference.greedy(CTX.target, pair("ctx").params["target"], PROMPTS[row], 20)


def test_a_draft_that_is_the_target_is_always_accepted():
    """Nothing is missing from the draft's context, wherever it stopped."""
    model, _, params = pair("ctx")
    decoder = adaedl(model, model, 4, threshold=0.42, threshold_memory=1.0)
    counts = run(decoder, {**params, "draft": params["target"]}, PROMPTS, 40).stats.counts
    np.testing.assert_array_equal(counts.rejections, 0)
    np.testing.assert_array_equal(counts.path_rolled_back, counts.drafted - counts.accepted)
    assert (counts.drafted - counts.accepted <= 4).all()  # cut at the limit
    assert (counts.rounds < counts.drafted).all()
    assert (counts.drafted < 4 * counts.rounds).all()


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
    confident = jax.vmap(lambda one: decoder.drafter.goes_on(state, one))(logits)
    assert confident.tolist() == [True, True, False, False]


def test_draft_steps_stop():
    """The draft runs as often as the longest row needs it: counted by a callback of its forward."""
    calls = []

    @dataclasses.dataclass(frozen=True)
    class Counted(TableLM):
        def logits(self, params, tokens, positions, context, block, mask):
            if tokens.shape[0] == 1 and block["token"].shape[0] > 1:  # a step below the root
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
    decoder = adaedl(target, CtxLM(11, noise=0.1, max_length=16), 3, threshold=NEVER)
    prompts = [PROMPTS[0], PROMPTS[2]]
    rounds, state = logged(decoder, params, prompts, 40)
    assert new_tokens(state) == [reference.greedy(target, params["target"], prompt, 40) for prompt in prompts]
    for row, memory, info in rounds:
        room = np.clip(16 - (row.num_tokens - 1), 0, 3)
        np.testing.assert_array_equal(info.num_drafted, np.where(row.is_finished, 0, room))
        assert (~info.is_rejected | (info.num_accepted < info.num_drafted)).all()
        is_behind = room == 0
        np.testing.assert_array_equal(memory.acceptance[is_behind], state.memory.acceptance[is_behind])


def test_greedy_program_does_no_vocabulary_work_but_maxima_and_entropy():
    """No noise, cumulative sum or sort of the vocabulary; no array of distributions."""
    wide, params = wide_vocabulary()
    work = vocabulary_work(program(adaedl(wide.target, wide.drafter.draft, 4), params).jaxpr)
    assert "exp" in work
    banned = {"sort", "cumsum", "random_bits", "threefry2x32", "log", "div", "scatter", "dynamic_update_slice"}
    assert not work & banned


def test_programs_do_not_grow_with_the_chain():
    sizes = [sum(1 for _ in equations(program(of_pair("ctx", size), pair("ctx").params).jaxpr)) for size in (4, 64)]
    assert sizes[0] == sizes[1]


def test_the_drafting_loop_copies_neither_caches_nor_carry():
    """Its condition is one for the batch: no step selects between an old and a new block, and caches stay in place."""
    model = WideLM(7)
    params = {"target": model.init(jax.random.key(0)), "draft": model.init(jax.random.key(1))}
    decoder = adaedl(model, model, 3)
    asked = Asked(max_new_tokens=500, logprobs=False, first_capacity=512)
    state = loop.begin(decoder, params, checked(decoder, params, [[1, 2]] * 3, checks.KEY, asked))
    counts = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), stats.zeros(decoder))
    cache = 3 * state.row.tokens.shape[1] * model.width * 4
    memory = loop._rounds.lower(decoder, params, state, counts).compile().memory_analysis()
    assert memory.alias_size_in_bytes > 2 * cache
    assert memory.temp_size_in_bytes < cache / 4
    traced = jax.make_jaxpr(functools.partial(loop._rounds, decoder))(params, state, counts)
    block = (3, 4, model.width)
    for equation in equations(traced.jaxpr):
        if equation.primitive.name == "select_n":
            assert equation.outvars[0].aval.shape != block


def test_equal_settings_are_one_program():
    again = of_pair("pos", threshold=0.6)
    assert again == POS
    assert hash(again) == hash(POS)
    assert again != of_pair("pos", threshold=0.61)
    run(POS, pair("pos").params, [[1]], 9)
    size = loop._rounds._cache_size()
    for seed in range(3):
        run(again, pair("pos").params, [[seed, 4]], 7 + seed, key=jax.random.key(seed))
    assert loop._rounds._cache_size() == size


def test_constructor_has_the_class_s_defaults():
    chain = tree.chain(4)
    assert adaedl(MODEL, MODEL, 4).drafter == AdaEDL(StaticTree(MODEL, MODEL, chain))
    assert (adaedl(MODEL, MODEL, 4).depth, adaedl(MODEL, MODEL, 4).max_emitted) == (4, 5)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_length": 0}, r"max_length=0.*at least 1.*autoregressive"),
        ({"threshold": math.nan}, r"threshold=nan.*-inf never stops"),
        ({"entropy_factor": -0.1}, r"entropy_factor=-0\.1.*at least 0.*0\.2"),
        ({"entropy_factor": math.inf}, r"entropy_factor=inf.*finite"),
        ({"step": math.nan}, r"step=nan.*at least 0.*0\.01"),
        ({"target_acceptance": 1.1}, r"target_acceptance=1\.1.*between 0 and 1.*0\.9"),
        ({"acceptance_memory": -1.0}, r"acceptance_memory=-1\.0.*between 0 and 1.*0\.5"),
        ({"threshold_memory": 2}, r"threshold_memory=2.*between 0 and 1.*0\.9"),
    ],
)
def test_values_out_of_range_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        adaedl(MODEL, MODEL, **{"max_length": 3, **settings})


def test_a_tree_is_refused():
    with pytest.raises(ValueError, match=r"siblings.*tree\.chain"):
        AdaEDL(StaticTree(MODEL, MODEL, tree.star(2)))
