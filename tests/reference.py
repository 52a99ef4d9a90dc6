"""Slow, plain twins of what jaxspec compiles: one token at a time, no cache, probabilities in float64."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Context, Model, Params

TEXT_BLOCK = 64
"""Texts are padded to a multiple of this; causal masks hide what lies behind a token."""


def greedy(model: Model, params: Params, prompt: Sequence[int], count: int, stop_ids: Sequence[int] = ()) -> list[int]:
    """Up to `count` new tokens of the uncached loop: the arg-max of a whole forward for each, a stop token included."""
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(int(np.argmax(text_logits(model, params, text)[-1])))
        if text[-1] in stop_ids:
            break
    return text[len(prompt) :]


def text_logits(model: Model, params: Params, text: Sequence[int]) -> np.ndarray:
    """`[len(text), V]` logits of one forward over the whole text with an empty context."""
    padded = np.zeros(-(-len(text) // TEXT_BLOCK) * TEXT_BLOCK, np.int32)
    padded[: len(text)] = text
    return np.asarray(_forward(model, params, jnp.asarray(padded)))[: len(text)]


def logprobs(model: Model, params: Params, prompt: Sequence[int], new_tokens: Sequence[int]) -> np.ndarray:
    """Log-probability of each new token under the raw logits, by teacher forcing."""
    logits = text_logits(model, params, [*prompt, *new_tokens])[len(prompt) - 1 : -1].astype(np.float64)
    return logits[np.arange(len(new_tokens)), list(new_tokens)] - np.log(np.exp(logits).sum(axis=1))


def distribution(
    logits: np.ndarray,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    bias: np.ndarray | None = None,
) -> np.ndarray:
    """`[…, V]` the documented pipeline: bias, temperature, top-k, top-p, min-p; one-hot at temperature 0."""
    logits = np.asarray(logits, np.float64) + (0.0 if bias is None else np.asarray(bias, np.float64))
    if logits.ndim > 1:
        return np.stack([distribution(row, temperature, top_k, top_p, min_p) for row in logits])
    if temperature == 0:
        return np.eye(len(logits))[np.argmax(logits)]
    scaled = (logits - logits.max()) / temperature
    if top_k:
        scaled = np.where(logits >= np.sort(logits)[-min(top_k, len(logits))], scaled, -np.inf)
    probs = np.exp(scaled) / np.exp(scaled).sum()
    if top_p < 1:
        ordered = np.sort(probs)[::-1]
        threshold = ordered[np.argmax(np.cumsum(ordered) >= top_p)]
        probs = np.where(probs >= threshold, probs, 0.0)
        probs /= probs.sum()
    if min_p:
        probs = np.where(probs >= min_p * probs.max(), probs, 0.0)
        probs /= probs.sum()
    return probs


def adjusted(
    logits: np.ndarray,
    text: Sequence[int],
    prompt_length: int,
    *,
    bias: Any = 0.0,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    penalise_prompt: bool = False,
    bad_words: Sequence[Sequence[int]] = (),
    min_new_tokens: int = 0,
    stop_ids: Sequence[int] = (),
) -> np.ndarray:
    """`[V]` logits of the token behind a text, under what is applied before temperature."""
    logits = np.asarray(logits, np.float64) + np.asarray(bias)
    counted = list(text if penalise_prompt else text[prompt_length:])
    for token in set(counted):
        logits[token] *= 1 / repetition_penalty if logits[token] > 0 else repetition_penalty
        logits[token] -= presence_penalty + frequency_penalty * counted.count(token)
    for *others, last in bad_words:
        if list(text[len(text) - len(others) :]) == others:
            logits[last] = -np.inf
    if len(text) - prompt_length < min_new_tokens:
        logits[list(stop_ids)] = -np.inf
    return logits


def greedy_text(model: Model, params: Params, prompt: Sequence[int], count: int, **options: Any) -> list[int]:
    """Up to `count` new tokens of the uncached loop under options of `adjusted`, a stop token included."""
    text = list(prompt)
    while len(text) < len(prompt) + count:
        logits = text_logits(model, params, text)[-1]
        text.append(int(np.argmax(adjusted(logits, text, len(prompt), **options))))
        if text[-1] in options.get("stop_ids", ()):
            break
    return text[len(prompt) :]


def text_law(
    table: np.ndarray, prompt: Sequence[int], count: int, temperature: float = 1.0, **options: Any
) -> dict[tuple[int, ...], float]:
    """The probability of each text of up to `count` new tokens of a table model under options of `adjusted`.

    Every path is followed with its own counts; a stop token ends a text.
    """
    law: dict[tuple[int, ...], float] = {}

    def follow(text: list[int], probability: float) -> None:
        new = text[len(prompt) :]
        if len(new) == count or (new and new[-1] in options.get("stop_ids", ())):
            law[tuple(new)] = probability
            return
        logits = adjusted(table[text[-1]], text, len(prompt), **options)
        for token, share in enumerate(distribution(logits, temperature)):
            if share > 0:
                follow([*text, token], probability * share)

    follow(list(prompt), 1.0)
    return law


def sequoia(target: np.ndarray, draft: np.ndarray, children: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """SEQUOIA's Algorithm 2, literally: the unconditional acceptance of each child, and the residual."""
    residual, proposal = np.asarray(target, np.float64), np.asarray(draft, np.float64)
    accept, reach, seen = np.zeros(len(children)), 1.0, set()
    for index, token in enumerate(children):
        accepts = min(1.0, residual[token] / proposal[token])
        accept[index], reach = reach * accepts, reach * (1.0 - accepts)
        positive = np.maximum(residual - proposal, 0.0)
        if positive.sum() <= 1e-14:  # accepted for certain: whatever follows has no weight
            break
        residual = positive / positive.sum()
        proposal = proposal.copy()
        proposal[token] = 0.0
        seen.add(token)
        if proposal.sum() <= 0:
            proposal = np.array([float(other not in seen) for other in range(len(proposal))])
        if proposal.sum() > 0:
            proposal /= proposal.sum()
    return accept, residual


def top_k_match(target: np.ndarray, children: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """A draw from the target matched against the children: their acceptance, and the law of a draw that is none."""
    target = np.asarray(target, np.float64)
    rest = target.copy()
    rest[list(children)] = 0.0
    return target[list(children)], rest / rest.sum() if rest.sum() > 0 else target


def draws(draft: np.ndarray, count: int) -> Iterator[tuple[tuple[int, ...], float]]:
    """Every ordered draw of `count` different tokens with its probability, uniform once the support is exhausted."""
    for tokens in itertools.permutations(range(len(draft)), count):
        law, probability = np.asarray(draft, np.float64).copy(), 1.0
        for index, token in enumerate(tokens):
            if law.sum() <= 0:
                law = np.array([float(other not in tokens[:index]) for other in range(len(law))])
            probability *= law[token] / law.sum()
            law[token] = 0.0
        if probability > 0:
            yield tokens, probability


def joint_law(transitions: np.ndarray, first: int, count: int) -> np.ndarray:
    """`[V, …, V]` law of the `count` tokens after `first` in a chain with `[V, V]` transition probabilities."""
    law = np.asarray(transitions, np.float64)[first]
    for _ in range(count - 1):
        law = law[..., None] * transitions
    return law


def total_variation(first: np.ndarray, second: np.ndarray) -> float:
    """Half the sum of absolute differences."""
    return 0.5 * float(np.abs(np.asarray(first, np.float64) - np.asarray(second, np.float64)).sum())


def chi_square_excess(counts: np.ndarray, law: np.ndarray) -> float:
    """How many standard deviations the chi-square statistic lies above its mean; infinite for an impossible event."""
    counts, law = np.asarray(counts, np.float64).ravel(), np.asarray(law, np.float64).ravel()
    if counts[law <= 0].any():
        return np.inf
    counts, expected = counts[law > 0], law[law > 0] / law.sum() * counts.sum()
    freedom = max(1, len(counts) - 1)
    return (float(((counts - expected) ** 2 / expected).sum()) - freedom) / np.sqrt(2.0 * freedom)


@functools.partial(jax.jit, static_argnums=0)
def _forward(model: Model, params: Params, tokens: jax.Array) -> jax.Array:
    size = tokens.shape[0]
    context = Context(model.empty(1), jnp.int32(0))
    positions = jnp.arange(size, dtype=jnp.int32)
    return model.apply(params, tokens, positions, context, model.empty(size), 0, jnp.tri(size, dtype=bool)).logits
