"""The draft's confidence and its acceptance, against PEARL's rounds written down token by token."""

import jax
import numpy as np
import pytest
from toys import PosLM, pair

from jaxspec import decode
from jaxspec.measure import calibration

V, LIMIT, STOP, STEPS = 11, 60, 5, 4
LENGTH = calibration.LENGTH
PROMPTS = [[1, 2, 3], [4, 4], [6, 8, 9, 10, 1], [10, 0], [2, 3, 4, 7]]
MODEL = PosLM(V)


@pytest.fixture(scope="module")
def params():
    """A target, and a draft that is often right."""
    target = pair("pos").params["target"]
    noise = 0.7 * jax.random.normal(jax.random.key(4), target["token"].shape)
    return {"target": target, "draft": target | {"token": target["token"] + noise}}


def measured(params, batch_size=2, **options):
    options = {"max_new_tokens": LIMIT, "stop_ids": [STOP], **options}
    return calibration.measured(
        MODEL, MODEL, params, PROMPTS, key=jax.random.key(5), batch_size=batch_size, steps=STEPS, **options
    )


def twin(params):
    """`[2, STEPS, 2]` by hand: tested and accepted tokens of each kind and step of the confidence."""
    params = jax.tree.map(np.asarray, params)
    counts = np.zeros((2, STEPS, 2))
    for prompt in PROMPTS:
        _rounds_of(params, list(prompt), counts)
    share = counts[..., 0] / counts[..., 0].sum(1, keepdims=True)
    return np.stack([share, counts[..., 1] / np.maximum(counts[..., 0], 1)], axis=-1)


def _rounds_of(params, prompt, counts):
    text, line, is_first = list(prompt), [], True
    while True:
        kind = 1 if line else 0
        line = line or [_next(params["draft"], text)]
        tested, new = [], []
        for token, confidence in line:
            wanted = _next(params["target"], [*text, *new])[0]
            tested.append((confidence, token == wanted))
            new.append(wanted)
            if token != wanted:
                break
        emitted = len(text) - len(prompt)
        if emitted + len(new) > LIMIT or STOP in new[:-1]:
            return
        is_end = STOP in new or emitted + len(new) == LIMIT
        if not is_first:  # nothing was seen in front of the first round
            for confidence, stands in tested:
                counts[kind, min(int(confidence * STEPS), STEPS - 1)] += 1, stands
        if is_end:
            return
        text += new
        survives, is_first = all(stands for _, stands in tested), False
        line = _line(params["draft"], text) if survives else []


def _next(params, text):
    """The likeliest token behind a text, and its probability."""
    logits = np.asarray(params["position"][len(text) - 1] + params["token"][text[-1]], np.float64)
    return int(logits.argmax()), float(1 / np.exp(logits - logits.max()).sum())


def _line(params, text):
    found = []
    while len(found) < LENGTH:
        found.append(_next(params, [*text, *(token for token, _ in found)]))
    return found


@pytest.mark.parametrize("batch_size", [1, 2])
def test_the_calibration_is_the_twins(params, batch_size):
    told = []
    found = measured(params, batch_size, progress=lambda *progress: told.append(progress))
    assert found is not None
    np.testing.assert_allclose(found, twin(params), atol=1e-6)
    np.testing.assert_allclose(found[..., 0].sum(1), 1.0)
    assert 0 < found[1, :, 1].max() <= 1
    assert told[-1][1:] == (5, 5)


def test_without_a_rejection_there_is_none(params):
    alike = {"target": params["target"], "draft": params["target"]}
    assert measured(alike, sampling=decode.Sampling(1.0)) is None


def test_no_prompts_are_refused(params):
    with pytest.raises(ValueError, match="0 prompts"):
        calibration.measured(MODEL, MODEL, params, [], key=jax.random.key(0), max_new_tokens=4)
