"""Logged rounds against a slow twin that decodes as PEARL does, token by token."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import PosLM, pair

from jaxspec import decode, hrad
from jaxspec.train.hrad import collecting

V, LENGTH, LIMIT, STOP = 11, 4, 60, 5
PROMPTS = [[1, 2, 3], [4, 4], [6, 8, 9, 10, 1], [10, 0], [2, 3, 4, 7]]


@dataclasses.dataclass(frozen=True)
class Featured(PosLM):
    """A `PosLM` whose `[n, 2, V]` features say each token and its position."""

    def apply(self, params, tokens, positions, context, block, slot, mask):
        output = super().apply(params, tokens, positions, context, block, slot, mask)
        return output._replace(hidden=jnp.stack([spread(tokens), spread(positions)], axis=1))


def spread(numbers):
    """`[n, V]` floats that a number can be read from."""
    return numbers[:, None].astype(jnp.float32) + jnp.arange(V, dtype=jnp.float32)[None] / 100


@pytest.fixture(scope="module")
def toy():
    """A target with two features, a draft, their parameters."""
    params = pair("pos").params
    noise = 0.7 * jax.random.normal(jax.random.key(4), params["target"]["token"].shape)
    return Featured(V), PosLM(V), params | {"draft": params["target"] | {"token": params["target"]["token"] + noise}}


def logits(params, text):
    """`[V]` float64 logits behind a text."""
    return np.asarray(params["position"][len(text) - 1] + params["token"][text[-1]], np.float64)


def greedy_text(params, prompt, count):
    text = list(prompt)
    for _ in range(count):
        text.append(int(logits(params, text).argmax()))
    return text[len(prompt) :]


def draft_line(params, text):
    """LENGTH greedy tokens behind a text, and their probabilities."""
    tokens, confidence = [], []
    for _ in range(LENGTH):
        found = logits(params, [*text, *tokens])
        tokens.append(int(found.argmax()))
        confidence.append(1 / np.exp(found - found.max()).sum())
    return tokens, confidence


def twin(params, prompt, greedy, limit):
    """The judged continuations of one prompt, whose greedy text is known."""
    emitted, line, log, before = 0, None, [], None
    while emitted < min(limit, len(greedy)) and (not emitted or greedy[emitted - 1] != STOP):
        text = [*prompt, *greedy[:emitted]]
        pending, fork = ([], draft_line(params["draft"], text)[0][0]) if line is None else (line[:-1], line[-1])
        stands = [token == wanted for token, wanted in zip(pending, greedy[emitted:], strict=False)]
        accepted = stands.index(False) if False in stands else len(stands)
        survives = accepted == len(pending) and greedy[emitted + accepted : emitted + accepted + 1] == [fork]
        ahead = greedy[emitted : emitted + accepted + 1]
        is_cut = len(ahead) <= accepted or emitted + accepted + 1 > limit or STOP in ahead[:-1]
        if before is not None and not is_cut:
            log.append((*before, accepted))
        if is_cut:
            return log
        emitted += accepted + 1
        before = line = None
        if survives:
            text = [*prompt, *greedy[:emitted]]
            line, confidence = draft_line(params["draft"], text)
            features = np.asarray(spread(np.array([text[-2], len(text) - 2])))
            before = features, text[-1], confidence
    return log


def expected(params, limit):
    """By prompt."""
    params = jax.tree.map(np.asarray, params)
    texts = [greedy_text(params["target"], prompt, limit + LENGTH) for prompt in PROMPTS]
    return [twin(params, prompt, text, limit) for prompt, text in zip(PROMPTS, texts, strict=True)]


def collect(toy, batch_size, temperature=0.0, prompts=PROMPTS, limit=LIMIT, **options):
    target, draft, params = toy
    return collecting.collect(
        collecting.logging_decoder(target, draft, LENGTH),
        params,
        prompts,
        key=jax.random.key(5),
        max_new_tokens=limit,
        sampling=decode.Sampling(temperature),
        stop_ids=[STOP],
        batch_size=batch_size,
        **options,
    )


@pytest.mark.parametrize("limit", [LIMIT, 15])  # the stop id cuts rounds short, or the limit does
def test_the_log_is_the_twins(toy, limit):
    told = []
    rounds = collect(toy, 2, limit=limit, progress=lambda *progress: told.append(progress))
    wanted = [(number, *entry) for number, log in enumerate(expected(toy[2], limit)) for entry in log]
    order = np.argsort(rounds.prompts, kind="stable")  # a batch logs its prompts in turns
    rounds = rounds.take(order)
    prompts, features, tokens, confidence, accepted = zip(*wanted, strict=True)
    assert len(wanted) > 5
    assert {0, 3} < set(accepted)  # all classes
    assert rounds.prompts.tolist() == list(prompts)
    assert rounds.tokens.tolist() == list(tokens)
    assert rounds.num_accepted.tolist() == list(accepted)
    np.testing.assert_allclose(rounds.features, np.stack(features), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(rounds.confidence, confidence, rtol=1e-3)
    assert rounds.length == LENGTH
    assert set(rounds.classes) <= {hrad.NONE, hrad.PARTIAL, hrad.ALL}
    assert rounds.classes.tolist() == [2 if a == 3 else int(a > 0) for a in accepted]
    assert told[-1] == ("rounds", 5, 5)


def test_sampled_rounds_depend_on_their_prompt_alone(toy):
    many, few = collect(toy, 2, 1.0), collect(toy, 2, 1.0, PROMPTS[:3])
    for number in range(3):
        ours, theirs = (rounds.take(rounds.prompts == number) for rounds in (many, few))
        assert ours.tokens.tolist() == theirs.tokens.tolist()
        assert ours.num_accepted.tolist() == theirs.num_accepted.tolist()


def test_inputs_are_what_the_decoder_hands_over(toy):
    target, _, params = toy
    rounds = collect(toy, 2)
    inputs = collecting.inputs(rounds, target, params["target"], chunk=3)
    assert inputs.shape == (len(rounds.tokens), 3 * V)
    embedding = np.eye(V)[rounds.tokens]
    np.testing.assert_array_equal(inputs, np.concatenate([rounds.features.reshape(-1, 2 * V), embedding], axis=1))


def test_what_cannot_be_logged_is_refused(toy):
    target, draft, params = toy
    with pytest.raises(ValueError, match=r"length=2: .*at least 3"):
        collecting.logging_decoder(target, draft, 2)
    with pytest.raises(ValueError, match="0 prompts"):
        collect(toy, 2, prompts=[])
    decoder = collecting.logging_decoder(draft, draft, LENGTH)  # a target without features
    with pytest.raises(ValueError, match="num_features=K"):
        collecting.collect(decoder, params, PROMPTS[:2], key=jax.random.key(0), max_new_tokens=4)
    rolled = jax.tree.map(lambda leaf: jnp.roll(leaf, 1, axis=-1), params["target"])
    with pytest.raises(ValueError, match="No branch survived a round on 2 prompts of 60 new tokens"):
        collect((target, draft, {"target": params["target"], "draft": rolled}), 2, prompts=PROMPTS[:2])


def test_kept_rounds_come_back_and_only_where_they_were_logged_alike(tmp_path):
    rng = np.random.default_rng(0)
    features, confidence = rng.random((5, 3, 4), np.float32), rng.random((5, 6), np.float32)
    tokens = np.arange(5, dtype=np.int32)
    logged = collecting.Rounds(features, tokens, confidence, tokens % 3, tokens // 2)
    made_with = {"pair": "toy", "temperature": 0.5, "prompts": ["a", "b"]}
    file = tmp_path / "rounds.npz"
    collecting.save(file, logged, made_with)
    chex.assert_trees_all_equal(collecting.load(file, made_with, 3), logged)
    last = collecting.load(file, made_with, 2)
    chex.assert_trees_all_equal(last, logged._replace(features=features[:, 1:]))
    with pytest.raises(ValueError, match=r"logged with temperature 0.5, not 1.0: give a new file's name"):
        collecting.load(file, made_with | {"temperature": 1.0}, 3)
    with pytest.raises(ValueError, match=r"logged with 3 layers of features, not 4"):
        collecting.load(file, made_with, 4)
    for content in (b"", b"no archive"):
        file.write_bytes(content)
        with pytest.raises(ValueError, match="holds no logged rounds"):
            collecting.load(file, made_with, 3)
    np.savez(file, tokens=tokens)
    with pytest.raises(ValueError, match="holds no logged rounds"):
        collecting.load(file, made_with, 3)
