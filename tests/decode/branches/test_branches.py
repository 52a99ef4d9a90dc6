"""Branch decoding: its tokens, what it accepts, its measures, H-RAD's inputs and the compiled program."""

import dataclasses
from typing import NamedTuple

import checks
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from checks import run
from test_compile import COMPILATIONS, VOCAB, arguments, cache_sizes, program, vocabulary_work
from test_derived import TARGET as KEPT_TARGET
from test_derived import KeptTableLM, params_of
from test_exact import ReadsBoth
from test_lossless_greedy import RAGGED
from test_lossless_sampled import MODEL, PARAMS, law
from test_stats import independent
from toys import CtxLM, FeatLM, TableLM, TokenFeatLM, WideLM, pair

from jaxspec import decode, hrad, verify
from jaxspec.base import Model, Params
from jaxspec.decode import loop, stats
from jaxspec.decode.branches import widths
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.decode.request import Asked, checked
from jaxspec.sampling import Sampling

CTX = FeatLM(11)


@dataclasses.dataclass(frozen=True)
class ReadsFeatures:
    """A network whose class changes with the position and the token of the features, and with the newest token."""

    def apply(self, params, inputs):
        position, token, newest = (jnp.argmax(part) for part in jnp.split(inputs, 4)[1:])
        return jax.nn.one_hot((position + token + newest) % 3, hrad.NUM_CLASSES)


def hashed(noise: float) -> dict[str, Params]:
    """Parameters of `CTX` as a target, and as its draft with noise; 0: the target itself."""
    seed = CTX.init(jax.random.key(11))["seed"]
    target, draft = ({"seed": seed, "noise": jnp.float32(value)} for value in (0.0, noise))
    return {"target": target, "draft": draft, "hrad": {}}


class Setting(NamedTuple):
    """A decoder, and the parameters of a draft that differs from the target and of one that is the target."""

    decoder: BranchDecoder
    params: dict[str, Params]
    equal: dict[str, Params]


def setting(model: Model, params, *arguments, **options):
    equal = {**params, "draft": params["target"]}
    return Setting(branch_decoder(model, model, *arguments, **options), params, equal)


LOW, H_RAD = hrad.Confidence(0.3), hrad.HRad(ReadsFeatures(), 0.3)
SETTINGS = {
    "pearl": setting(CTX, hashed(0.4), 4, 1),
    "pearl staged": setting(CTX, hashed(0.4), 4, 1, has_draft_stage=True),
    "branches": setting(CTX, hashed(0.6), 3, 4),
    "confidence": setting(CTX, hashed(0.4), 4, 3, LOW),
    "confidence, topk, staged": setting(CTX, hashed(0.4), 5, 3, LOW, verify.TOP_K, True),
    "H-RAD": setting(CTX, hashed(0.4), 4, 3, H_RAD),
    "H-RAD, topk, staged": setting(CTX, hashed(0.4), 3, 3, H_RAD, verify.TOP_K, True),
    "one token": setting(CTX, hashed(0.4), 1, 3, LOW),
    "all tried": setting(CTX, hashed(1.0), 3, 2, LOW, width=widths.ALL),
    **{name: setting(pair(name).target, pair(name).params, 4, 3, LOW) for name in ("pos", "table", "tiny")},
}
"""Draft and target are one model with different parameters, so that a program serves both kinds of parameters."""


def assert_counts_hold_together(decoder: BranchDecoder, counts: stats.Counts) -> None:
    """What is true of every row's counts without a limit of the draft's positions."""
    tally, length, drafter = counts.tally, decoder.length, decoder.drafter
    ends = tally.pending_rejected + tally.branch_rejected + tally.survived
    assert ((ends == counts.rounds) | (ends == counts.rounds - 1)).all()  # the last may be cut short
    np.testing.assert_array_equal(counts.rejections, tally.pending_rejected + tally.branch_rejected)
    np.testing.assert_array_equal(counts.emitted - counts.accepted, counts.rejections)
    np.testing.assert_array_equal(counts.accepted_lengths @ np.arange(length + 1), counts.accepted)
    assert (counts.accepted <= counts.drafted).all()
    assert (counts.path_rolled_back <= counts.path_drafted).all()
    assert (counts.path_drafted <= counts.drafted).all()
    assert (counts.path_drafted - counts.path_rolled_back >= counts.accepted).all()
    np.testing.assert_array_equal(counts.drafted - counts.path_drafted, length * (tally.branches - counts.rounds))
    widest = drafter.max_branches - (drafter.width == widths.ADAPTIVE)
    assert (tally.branches <= max(widest, 1) * counts.rounds).all()
    assert (tally.pending <= (length - 1) * counts.rounds).all()
    assert (tally.hits <= tally.labels).all()
    labels, judged = tally.labels.sum(axis=1), ends - 1 if drafter.has_draft_stage else tally.survived
    assert ((labels == judged) | (labels == judged - 1) & (not drafter.has_draft_stage)).all()
    if drafter.cut == hrad.KEEP_ALL:
        assert not tally.labels[:, : hrad.ALL].any()
    if drafter.cut == hrad.KEEP_ALL and drafter.max_branches == 1:
        np.testing.assert_array_equal(counts.path_drafted, counts.drafted)
        np.testing.assert_array_equal(counts.path_rolled_back, counts.drafted - counts.accepted)


def assert_accepts_everything(decoder: BranchDecoder, equal: dict[str, Params], count: int = 26) -> stats.Counts:
    """The tokens are right, and the draft proposed all of them."""
    counts = checks.assert_greedy_equals_reference(decoder, equal, RAGGED, count).stats.counts
    np.testing.assert_array_equal(counts.rejections, 0, err_msg="something was rejected")
    np.testing.assert_array_equal(counts.accepted, count)
    return counts


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_and_counts_of_a_batch(name):
    """A1, A6, D8, F1: prompts of 1, 2, 7 and 31 tokens together, with drafts of different quality."""
    decoder, params, _ = SETTINGS[name]
    counts = checks.assert_greedy_equals_reference(decoder, params, RAGGED).stats.counts
    assert_counts_hold_together(decoder, counts)
    assert counts.accepted.sum() > 0.2 * counts.emitted.sum()
    assert counts.tally.branch_rejected.sum() > 0
    if decoder.target == CTX and decoder.length > 1:
        assert counts.tally.pending_rejected.sum() > 0
        assert counts.tally.survived.sum() > 0
    if decoder.drafter.cut == H_RAD:
        assert (counts.tally.labels.sum(axis=0) > 0).all()


@pytest.mark.parametrize("name", SETTINGS)
def test_a_draft_that_is_the_target_is_always_accepted(name):
    """A5: a forgotten catch-up token, a wrong slot, position or mask anywhere in the draft, and a round is short."""
    decoder, _, equal = SETTINGS[name]
    count = 26
    counts = assert_accepts_everything(decoder, equal, count)
    assert_counts_hold_together(decoder, counts)
    np.testing.assert_array_equal(counts.tally.hits[:, : hrad.ALL], 0)
    np.testing.assert_array_equal(counts.tally.hits[:, hrad.ALL], counts.tally.labels[:, hrad.ALL])
    if decoder.drafter.cut == hrad.KEEP_ALL:  # one token in the first round, G in each further one
        np.testing.assert_array_equal(counts.rounds, 1 + -(-(count - 1) // decoder.length))
    elif decoder.length > 1:
        assert (counts.rounds > 1 + (count - 1) // decoder.length).all()
        assert (counts.rounds < count).any()


@pytest.mark.parametrize("name", ["confidence, topk, staged", "tiny"])
def test_tokens_of_one_prompt(name):
    decoder, params, _ = SETTINGS[name]
    for prompt in checks.PROMPTS:
        checks.assert_greedy_equals_reference(decoder, params, [prompt])


@pytest.mark.parametrize("is_equal", [False, True], ids=["", "equal"])
@pytest.mark.parametrize(
    ("name", "temperature"),
    [("pearl", 0.0), ("H-RAD, topk, staged", 0.0), ("confidence", 1.0)],
)
def test_ends_in_the_middle_of_a_round(name, temperature, is_equal):
    """D1, D3: a stop id or a limit falls on pending tokens, candidates and corrections; it changes no other token."""
    decoder, params, equal = SETTINGS[name]
    arguments_ = decoder, equal if is_equal else params, RAGGED
    whole = checks.rows(run(*arguments_, 20, sampling=Sampling(temperature)))
    for stops in ((), (0, 1), (2, 3), (5, 7, 9)):
        for count in (1, 2, 3, 5, 6, 7, 20):
            generation = run(*arguments_, count, sampling=Sampling(temperature), stop_ids=stops)
            assert_counts_hold_together(decoder, generation.stats.counts)
            for row, (tokens, found) in enumerate(zip(whole, checks.rows(generation), strict=True)):
                places = [place for place, token in enumerate(tokens[:count]) if token in stops]
                assert found == (tokens[: places[0] + 1] if places else tokens[:count])
                assert generation.finish_reason[row] == ("stop" if places else "length")


def test_room_that_grows_between_rounds():
    """The pending tokens outlive a change of the bucket."""
    decoder, _, equal = SETTINGS["pearl"]
    generation = checks.assert_greedy_equals_reference(decoder, equal, RAGGED, 60, first_capacity=64)
    assert generation.stats.rounds.tolist() == [1 + -(-59 // 4)] * 5


def test_draft_of_limited_length():
    """E5: behind the draft's last position nothing is drafted, and decoding goes on plainly, in the same program."""
    decoder = branch_decoder(FeatLM(11, max_length=64), FeatLM(11, max_length=16), 4, 1)
    prompts = [checks.PROMPTS[0], checks.PROMPTS[2]]
    state, reports = checks.steps(decoder, hashed(0.1), prompts, 40)
    drafted = accepted = rolled_back = 0
    for row, prompt in enumerate(prompts):
        tokens = state.row.tokens[row, len(prompt) : len(prompt) + 40].tolist()
        assert tokens == reference.greedy(CTX, hashed(0.1)["target"], prompt, 40)
    for before, info in reports:
        beyond = before.num_tokens - 1 >= 16
        assert not info.num_drafted[beyond].any()
        assert not info.is_visited[beyond].any()
        assert not info.is_rejected[beyond].any()
        np.testing.assert_array_equal(info.num_emitted[beyond], ~before.is_finished[beyond])
        drafted, accepted = drafted + info.num_drafted, accepted + info.num_accepted
        rolled_back = rolled_back + info.path_rolled_back
    np.testing.assert_array_equal(drafted, accepted + rolled_back)
    assert (drafted > 4).all()
    assert (accepted > 4).all()


def test_draft_of_limited_length_that_is_the_target():
    """Of the 16 tokens that the draft can propose behind a prompt of one, all are drafted, once, and accepted."""
    decoder = branch_decoder(FeatLM(11, max_length=64), FeatLM(11, max_length=16), 4, 1)
    _, reports = checks.steps(decoder, hashed(0.0), [[3], [1, 4]], 40)
    assert sum(info.num_drafted for _, info in reports).tolist() == [16, 15]
    assert sum(info.num_accepted for _, info in reports).tolist() == [16, 15]
    assert sum(info.tally.branches for _, info in reports).tolist() == [4, 4]


# At temperature above 0.

SAMPLED = {
    "pearl": decode.pearl(MODEL, MODEL, 3),
    "confidence": decode.specbranch(MODEL, MODEL, None, 3, 3, 0.25),
    "H-RAD, topk, staged": decode.specbranch(
        TokenFeatLM(3), MODEL, ReadsBoth(), 3, 3, 0.55, fork=verify.TOP_K, has_draft_stage=True
    ),
}
ALL_PARAMS = {**PARAMS, "hrad": {}}


def assert_joint_law(decoder, params, transitions, count=4, **options):
    """From 2^15 samples, of which the expected distance is .4 sqrt(V^count / 2^15): .02 for 4 tokens of 3."""
    limit = 0.65 * (len(transitions) ** count / 2**15) ** 0.5
    checks.assert_joint_law(decoder, params, transitions, count, limit, num_keys=2, num_rows=2**14, **options)


@pytest.mark.parametrize("name", SAMPLED)
def test_joint_law_of_four_tokens(name):
    """Two to four rounds: noise that is used twice shows."""
    assert_joint_law(SAMPLED[name], ALL_PARAMS, law())


def test_joint_law_under_options():
    """G1: pending tokens, candidates and corrections follow one pipeline."""
    decoder = SAMPLED["confidence"]
    for options in (
        {"temperature": 2.0, "top_k": 2, "top_p": 0.95},
        {"temperature": 2.0, "top_k": 3, "top_p": 0.6},
        {"temperature": 0.7, "top_k": 2, "top_p": 0.9},
    ):
        assert np.sort(law(**options), axis=1)[:, -1].min() < 0.9
        assert_joint_law(decoder, PARAMS, law(**options), 3, sampling=Sampling(**options))


def test_the_draft_s_temperature_changes_speed_only():
    """C3: drafts at temperature 0 and 2 below a target at .7, in one program."""
    decoder = SAMPLED["confidence"]
    for temperature in (0.0, 2.0):
        options = {"sampling": Sampling(0.7), "draft_temperature": temperature}
        assert_joint_law(decoder, ALL_PARAMS, law(temperature=0.7), **options)


def test_rows_with_their_own_options():
    """C2: rows at T = 0, 1, 0 and .7 in one batch each have their own law."""
    temperatures = np.tile([0.0, 1.0, 0.0, 0.7], 2**12)
    options = {"sampling": Sampling(temperatures), "logprobs": False}
    tokens = run(SAMPLED["confidence"], ALL_PARAMS, [[0]] * 2**14, 3, **options).tokens
    for offset, temperature in ((1, 1.0), (3, 0.7)):
        counts = np.bincount(tokens[offset::4] @ [9, 3, 1], minlength=27)
        assert reference.chi_square_excess(counts, reference.joint_law(law(temperature=temperature), 0, 3)) < 5
    assert (tokens[::2] == reference.greedy(MODEL, PARAMS["target"], [0], 3)).all()


def test_joint_law_with_a_reduced_vocabulary():
    """Candidates from a draft that lacks token 1, two of them where the confidence is low enough."""
    decoder = decode.specbranch(TableLM(4), KeptTableLM(4), None, 2, 3, 0.4)
    params = params_of([[0.3, 0.1, 0.2, 0.4], [0.4, 0.1, 0.2, 0.3], [0.3, 0.0, 0.3, 0.4], [0.5, 0.1, 0.2, 0.2]])
    assert_joint_law(decoder, params, KEPT_TARGET, 3)
    generation = run(decoder, params, [[0]] * 2**14, 3, sampling=Sampling(1.0), logprobs=False)
    assert generation.stats.total().acceptance[1] > 0.005


def test_draft_of_limited_length_keeps_the_law():
    """E5: the law is the target's on both sides of the limit."""
    decoder = branch_decoder(MODEL, TableLM(3, max_length=3), 3, 3, hrad.Confidence(0.25))
    assert_joint_law(decoder, PARAMS, law())


def test_sampled_draft_that_is_the_target_is_always_accepted():
    """Draws that come from the target pass every test: the noise of a round's parts does not matter."""
    decoder, _, equal = SETTINGS["confidence"]
    counts = run(decoder, equal, RAGGED, 26, sampling=Sampling(1.0)).stats.counts
    np.testing.assert_array_equal(counts.rejections, 0)
    np.testing.assert_array_equal(counts.accepted, 26)


# Measures.


@pytest.mark.parametrize(
    ("alpha", "length", "tokens", "rollback"),
    [(0.5, 4, 1.3043, 0.8370), (0.65, 8, 1.7094, 0.8611), (0.9, 5, 3.1272, 0.4371)],
)
def test_pearl_of_known_acceptance(alpha, length, tokens, rollback):
    """papers.md 4.7: independent acceptance of α at every position."""
    model, params = independent((1.0, 0.0), (alpha, 1.0 - alpha))
    options = {"sampling": Sampling(1.0), "logprobs": False}
    generation = run(decode.pearl(model, model, length), params, [[0]] * 128, 1500, **options)
    assert_counts_hold_together(decode.pearl(model, model, length), generation.stats.counts)
    total = generation.stats.total()
    assert total.tokens_per_round == pytest.approx(tokens, rel=0.015)
    assert total.rollback_path == pytest.approx(rollback, rel=0.015)
    assert total.rollback_all == total.rollback_path
    assert total.counts.drafted == length * total.rounds
    assert total.acceptance[0] == pytest.approx(alpha, abs=0.005)


def test_number_of_branches():
    """K4: k = max(1, floor(k_max (1 - p)))."""
    found = [int(widths.ADAPTIVE(jnp.float32(p), 6)) for p in (0.0, 0.1, 0.26, 0.5, 0.67, 0.9, 1.0)]
    assert found == [6, 5, 4, 3, 1, 1, 1]
    assert int(widths.ALL(jnp.float32(0.9), 6)) == 6


def test_branches_of_a_run():
    """K4: with one confidence everywhere, every round continues as many candidates; at temperature 0 too."""
    decoder = branch_decoder(TableLM(8), TableLM(8), 2, 6)
    for confidence, branches in ((0.15, 5), (0.26, 4), (0.45, 3), (0.55, 2), (0.9, 1)):
        draft = np.array([confidence, *[(1.0 - confidence) / 7] * 7])
        _, params = independent(np.full(8, 1 / 8), draft)
        counts = run(decoder, params, [[1], [2]], 12).stats.counts
        np.testing.assert_array_equal(counts.tally.branches, branches * counts.rounds)
        np.testing.assert_array_equal(counts.accepted, 12)  # both favour token 0, which is the first candidate


# H-RAD.


@dataclasses.dataclass(frozen=True)
class Spy:
    """A cut that hands out what it was given, as the label: row, position and token of the features, newest token."""

    reads_features = True

    def __call__(self, params, features, embedding, confidence):
        assert features.shape == (3, 64)
        assert confidence.shape == (3,)
        row, position, token = jnp.argmax(features, axis=1)
        newest = jnp.argmax(embedding)
        label = ((row * 64 + position) * 64 + token) * 64 + newest
        return hrad.Cutting(((position + token + newest) % 3).astype(jnp.int32), label.astype(jnp.int32))


SPY_PROMPTS = [[1, 4], [2, 0, 5, 5, 1], [3, 9, 2, 7, 7, 0, 1, 5, 4]]


def seen_by_the_cut(decoder, chunk=64, count=24):
    """What each row's cut saw after each round, beside what it should have seen, and each round's emitted tokens."""
    asked = Asked(max_new_tokens=count, logprobs=False, prefill_chunk=chunk)
    state = loop.begin(decoder, hashed(0.4), checked(decoder, hashed(0.4), SPY_PROMPTS, checks.KEY, asked))
    stage = jax.jit(jax.vmap(lambda one: decoder.drafter.draft_stage(hashed(0.4), one)))
    found, wanted, emitted = [], [], []
    while not np.asarray(state.row.is_finished).all():
        state, info = loop._round(decoder, hashed(0.4), state)
        tokens, lengths = np.asarray(state.row.tokens), np.asarray(state.row.num_tokens)
        memory = stage(state).memory if decoder.drafter.has_draft_stage else state.memory
        took_part = np.asarray(info.num_emitted) > 0
        for row, length in enumerate(lengths):
            if took_part[row]:
                label = int(memory.label[row])
                found.append((label >> 18, (label >> 12) & 63, (label >> 6) & 63, label & 63))
                wanted.append((tokens[row, 0], length - 2, tokens[row, length - 2], tokens[row, length - 1]))
        emitted.append(np.asarray(info.num_emitted).tolist())
    return found, wanted, emitted


def assert_cut_reads_the_newest(decoder: BranchDecoder) -> tuple:
    """E6: the target's features at the last verified position of the row, and the embedding of its newest token."""
    found, wanted, emitted = seen_by_the_cut(decoder)
    assert found == wanted
    return found, wanted, emitted


@pytest.mark.parametrize("staged", [False, True], ids=["", "staged"])
def test_what_the_cut_reads(staged):
    decoder = branch_decoder(CTX, CTX, 3, 3, Spy(), has_draft_stage=staged)
    found, wanted, emitted = assert_cut_reads_the_newest(decoder)
    assert {1, 2, 3} <= {count for counts in emitted for count in counts}
    assert any(len(set(counts)) > 1 for counts in emitted)
    for chunk in () if staged else (1, 3):  # E7
        assert seen_by_the_cut(decoder, chunk) == (found, wanted, emitted)


def test_features_are_kept_for_training():
    """`keeps_features` gives them to any cut, and changes no token."""
    decoder, seen = branch_decoder(CTX, CTX, 3, 3, LOW, keeps_features=True), 0

    def look(state):
        nonlocal seen
        for row in np.flatnonzero(~np.asarray(state.row.is_finished) & (np.asarray(state.row.num_rounds) > 0)):
            tokens, last = np.asarray(state.row.tokens[row]), int(state.row.num_tokens[row]) - 1
            assert np.argmax(state.memory.features[row], axis=1).tolist() == [row + 1, last - 1, tokens[last - 1]]
            assert np.argmax(state.memory.embedding[row]) == tokens[last]
            seen += 1
        return state

    state, _ = checks.steps(decoder, hashed(0.4), SPY_PROMPTS, 12, change=look)
    assert seen > 12
    for row, prompt in enumerate(SPY_PROMPTS):
        tokens = state.row.tokens[row, len(prompt) : len(prompt) + 12].tolist()
        assert tokens == reference.greedy(CTX, hashed(0.4)["target"], prompt, 12)


@pytest.mark.parametrize("staged", [False, True])
def test_a_target_without_features_is_refused(staged):
    """The message comes before anything of the decoder is compiled."""
    decoder = branch_decoder(CtxLM(11), CtxLM(11), 3, 3, H_RAD, has_draft_stage=staged)

    def attempt():
        with pytest.raises(ValueError, match=r"CtxLM gives no features.*num_features"):
            run(decoder, hashed(0.4), [[1]])

    attempt()  # which may compile what makes the keys
    programs, count = loop._rounds._cache_size(), len(COMPILATIONS)
    attempt()
    assert (loop._rounds._cache_size(), len(COMPILATIONS)) == (programs, count)


def test_missing_parameters_of_the_head_are_refused():
    decoder, params, _ = SETTINGS["H-RAD"]
    without = {name: params[name] for name in ("target", "draft")}
    with pytest.raises(ValueError, match=r"params has no 'hrad'"):
        run(decoder, without, [[1]])
    arguments(SETTINGS["confidence"].decoder, without)  # which reads none


def test_bad_settings_are_refused():
    for message, arguments_ in (
        ("length=0", (0, 2)),
        ("max_branches=0", (2, 0)),
        ("12 siblings.*11 tokens", (2, 12)),
    ):
        with pytest.raises(ValueError, match=message):
            branch_decoder(CTX, CTX, *arguments_)
    with pytest.raises(ValueError, match=r"epsilon=1\.5"):
        decode.specbranch(CTX, CTX, None, 4, 3, 1.5)
    with pytest.raises(ValueError, match=r"epsilon=-0\.1"):
        decode.specbranch(CTX, CTX, ReadsFeatures(), 4, 3, -0.1)
    with pytest.raises(ValueError, match=r"width='most'.*'adaptive', 'all'"):
        decode.specbranch(CTX, CTX, None, 4, 3, 0.1, width="most")


def test_cuts():
    """How many tokens are kept, and the class, from confidences of a continuation of four."""
    confidence = jnp.array([0.9, 0.5, 0.2, 0.0])  # the last is the one beyond: it can't be pending
    features, embedding = jnp.zeros((3, 64)), jnp.zeros(64)

    def found(cut):
        return tuple(int(value) for value in cut({}, features, embedding, confidence))

    assert found(hrad.KEEP_ALL) == (3, hrad.ALL)
    assert found(hrad.Confidence(0.0)) == found(hrad.Confidence(0.2)) == (3, hrad.ALL)
    assert found(hrad.Confidence(0.3)) == (2, hrad.PARTIAL)
    assert found(hrad.Confidence(0.6)) == (1, hrad.PARTIAL)
    assert found(hrad.Confidence(1.0)) == (0, hrad.NONE)
    assert found(hrad.HRad(ReadsFeatures(), 0.3)) == (0, hrad.NONE)
    embedding = embedding.at[1].set(1.0)
    assert found(hrad.HRad(ReadsFeatures(), 0.3)) == (2, hrad.PARTIAL)
    embedding = jnp.roll(embedding, 1)
    assert found(hrad.HRad(ReadsFeatures(), 0.3)) == (3, hrad.ALL)
    assert hrad.labels(np.arange(4), 3).tolist() == [hrad.NONE, hrad.PARTIAL, hrad.PARTIAL, hrad.ALL]


# The compiled program.


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_values_compile_nothing(temperature):
    """K6: seeds, prompts and limits share a program, and so do equal decoders."""
    sampling = Sampling(temperature)

    def made_anew():
        cut = hrad.HRad(ReadsFeatures(), 0.3)
        return branch_decoder(FeatLM(11), FeatLM(11), 4, 3, cut)

    assert made_anew() == SETTINGS["H-RAD"].decoder
    assert hash(made_anew()) == hash(SETTINGS["H-RAD"].decoder)
    other = dataclasses.replace(made_anew().drafter, cut=hrad.HRad(ReadsFeatures(), 0.4))
    assert made_anew() != BranchDecoder(other)
    decoder = SETTINGS["confidence"].decoder if temperature else made_anew()
    run(decoder, hashed(0.4), RAGGED, sampling=sampling)
    sizes, count = cache_sizes(), len(COMPILATIONS)
    for seed in range(3):
        prompts = [[seed] * (1 + seed), *RAGGED[1:]]
        decoder = BranchDecoder(dataclasses.replace(decoder.drafter, target=FeatLM(11), draft=FeatLM(11)))
        run(decoder, hashed(0.1 * seed), prompts, 5 + seed, key=jax.random.key(seed), sampling=sampling)
    assert cache_sizes() == sizes
    assert len(COMPILATIONS) == count


@pytest.mark.parametrize(("length", "max_branches"), [(1, 1), (4, 1), (4, 3), (3, 5)])
def test_slots_of_the_draft(length, max_branches):
    """K4: the root, G - 1 pending tokens, and G tokens for each branch; no context."""
    decoder = branch_decoder(CTX, CTX, length, max_branches, LOW)
    _, params, state, _ = arguments(decoder, hashed(0.4))
    one = jax.tree.map(lambda leaf: leaf[0], state)
    branches = jax.eval_shape(decoder.drafter.draft_branches, params, one)
    for leaf in jax.tree.leaves(branches.block):
        assert leaf.shape == (length + length * max_branches,)
    for leaf in jax.tree.leaves(one.memory.entries):
        assert leaf.shape == (length,)
    assert branches.continuations.tokens.shape == (max_branches, length)


def test_contexts_are_not_copied():
    """I1, K4: the program's temporaries are the same at twice the capacity, and far smaller than a cache."""
    model = WideLM(7, width=2048)
    params = {"target": model.init(jax.random.key(0)), "draft": model.init(jax.random.key(1))}
    sizes = []
    for count in (200, 900):
        decoder, *traced = arguments(branch_decoder(model, model, 3, 3, LOW), params, count=count, first_capacity=count)
        slots = traced[1].row.tokens.shape[1]
        memory = loop._rounds.lower(decoder, *traced).compile().memory_analysis()
        assert memory.alias_size_in_bytes > 2 * slots * model.width * 4
        sizes.append((slots, memory.temp_size_in_bytes))
    (small, least), (large, most) = sizes
    assert (small, large) == (256, 1024)
    assert most - least < (large - small) * model.width * 4 / 50
    assert most < large * model.width * 4 / 4


@pytest.mark.parametrize("cut", [hrad.KEEP_ALL, LOW], ids=["pearl", "confidence"])
def test_greedy_program_does_no_vocabulary_work_but_maxima(cut):
    """I8: no noise, sort or cumulative sum; exponentials for the confidence alone, which PEARL does without."""
    model = TableLM(VOCAB)
    params = {"target": {"table": jnp.zeros((VOCAB, VOCAB))}, "draft": {"table": jnp.zeros((VOCAB, VOCAB))}}
    branches = 1 if cut == hrad.KEEP_ALL else 3
    work = vocabulary_work(program(branch_decoder(model, model, 3, branches, cut), params).jaxpr)
    allowed = {
        "gather", "reduce_max", "top_k", "pad", "reshape", "broadcast_in_dim", "convert_element_type", "slice",
        "dynamic_slice", "squeeze", "while", "scan", "jit", "pjit", "cond", "transpose", "argmax", "custom_jvp_call",
    }  # fmt: skip
    softmax = {"exp", "sub", "reduce_sum"}
    assert "reduce_max" in work
    if cut == hrad.KEEP_ALL:
        assert work <= allowed, work - allowed
    else:
        assert softmax <= work
        assert work <= allowed | softmax | {"stop_gradient", "is_finite", "select_n"}, work - allowed
