"""Logged rounds that H-RAD is trained from: what it would have read, and how much of the continuation was accepted.

PEARL's decoder, which keeps every continuation whole, runs over prompts round by round. A round that a branch survives
leaves a continuation of G - 1 pending tokens; the next round says how many of them the target accepts.
"""

import functools
import json
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Model, Params, Progress
from jaxspec.decode import Info, Sampling, State
from jaxspec.decode.branches import cuts
from jaxspec.decode.branches.decoder import BranchDecoder, branch_decoder
from jaxspec.measure.observing import BATCH_SIZE, observed
from jaxspec.sampling import GREEDY


class Rounds(NamedTuple):
    """Continuations and their fate, on the host.

    Attributes:
        features: `[n, K, D]` float32 of the target at the newest verified position.
        tokens: `[n]` int32, the newest committed token, which stands behind that position.
        confidence: `[n, G]` float32, the draft's in the tokens behind it.
        num_accepted: `[n]` int32 of the G - 1 pending ones that the next round accepted.
        prompts: `[n]` int32, the number of the prompt.
    """

    features: np.ndarray
    tokens: np.ndarray
    confidence: np.ndarray
    num_accepted: np.ndarray
    prompts: np.ndarray

    @property
    def length(self) -> int:
        """G."""
        return self.confidence.shape[1]

    @property
    def classes(self) -> np.ndarray:
        """`[n]` H-RAD's class of each."""
        return np.asarray(cuts.labels(self.num_accepted, self.length - 1))

    def take(self, chosen: np.ndarray) -> "Rounds":
        """Some of them, by their places or a mask."""
        return Rounds(*(leaf[chosen] for leaf in self))


def logging_decoder(target: Model, draft: Model, length: int) -> BranchDecoder:
    """The decoder whose rounds are logged: PEARL's, with features and confidence.

    Args:
        target: With features, `num_features=K`.
        draft: The draft.
        length: G, as for `decode.pearl`.

    Raises:
        ValueError: A length below 3, at which no continuation is partly accepted.
    """
    if length < 3:
        raise ValueError(f"length={length}: H-RAD's three classes need at least 3, which is 2 pending tokens.")
    return branch_decoder(target, draft, length, 1, cut=cuts.Confidence(0.0), keeps_features=True)  # 0 cuts nothing


def collect(
    decoder: BranchDecoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    key: jax.Array,
    max_new_tokens: int = 128,
    sampling: Sampling = GREEDY,
    draft_temperature: float | None = None,
    stop_ids: Sequence[int] = (),
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Rounds:
    """The rounds of all prompts behind a round that a branch survived.

    Left out are rounds that a stop id or the limit cut short, since nobody knows how they would have ended, and those
    in front of the draft's last position. A prompt's rounds depend on its own number and key, not on its batch.

    Args:
        decoder: From `logging_decoder`.
        params: `{"target": …, "draft": …}`.
        prompts: Lists of token ids.
        key: The key is consumed.
        max_new_tokens: New tokens of each prompt.
        sampling: As for `decode.generate`.
        draft_temperature: As for `decode.generate`.
        stop_ids: Token ids that end a text.
        batch_size: Prompts decoded side by side.
        progress: Told after each round how many prompts are done.

    Raises:
        ValueError: No prompts, a batch size below 1, anything that `decode.generate` refuses, or no such round at all.
    """
    logged = [
        _judged(*seen)
        for seen in observed(
            decoder,
            params,
            prompts,
            _observe,
            key=key,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            draft_temperature=draft_temperature,
            stop_ids=stop_ids,
            batch_size=batch_size,
            progress=progress,
        )
    ]
    if not sum(len(one.tokens) for one in logged):
        raise ValueError(
            f"No branch survived a round on {len(prompts)} prompts of {max_new_tokens} new tokens, so that there is "
            "nothing to learn from: take more prompts, more tokens or a better draft."
        )
    return Rounds(*(np.concatenate(leaves) for leaves in zip(*logged, strict=True)))


def inputs(rounds: Rounds, target: Model, params: Params, chunk: int = 1024) -> np.ndarray:
    """`[n, F]` float32: what H-RAD's network reads in each of the rounds; the parameters are the target's."""
    parts = [
        np.asarray(
            _inputs(target, params, rounds.features[start : start + chunk], rounds.tokens[start : start + chunk])
        )
        for start in range(0, len(rounds.tokens), chunk)
    ]
    return np.concatenate(parts)


def save(file: Path, rounds: Rounds, made_with: Mapping[str, Any]) -> None:
    """Writes rounds as an `.npz`, with the settings that they were logged with, JSON values."""
    with file.open("wb") as opened:  # a path of another ending would be changed
        np.savez(opened, made_with=json.dumps(dict(made_with)), **rounds._asdict())


def load(file: Path, made_with: Mapping[str, Any], num_features: int) -> Rounds:
    """The rounds that `save` wrote, with the last `num_features` of their layers.

    Raises:
        ValueError: No such file, rounds that were logged with other settings, or with fewer layers; names them.
    """
    try:
        with np.load(file) as saved:
            rounds = Rounds(*(saved[name] for name in Rounds._fields))
            theirs = json.loads(str(saved["made_with"]))
    except (KeyError, ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{file} holds no logged rounds ({error}): give a new file's name to log them.") from error
    differ = [
        f"{key} {theirs.get(key)!r}, not {value!r}" for key, value in made_with.items() if theirs.get(key) != value
    ]
    if rounds.features.shape[1] < num_features:
        differ.append(f"{rounds.features.shape[1]} layers of features, not {num_features}")
    if differ:
        raise ValueError(f"{file} was logged with {'; '.join(differ)}: give a new file's name, or these settings.")
    return rounds._replace(features=rounds.features[:, -num_features:])


class _Seen(NamedTuple):
    """What is read of a round: what it left behind, and what it made of what it found.

    Attributes:
        features: `[B, K, D]`.
        tokens: `[B]`, the newest ones.
        confidence: `[B, G]` of the continuation.
        is_whole: `[B]` bool, whether the continuation is pending, all G - 1 tokens of it.
        num_accepted: `[B]` pending tokens that this round accepted.
        is_judged: `[B]` bool, whether it ended by itself.
    """

    features: jax.Array
    tokens: jax.Array
    confidence: jax.Array
    is_whole: jax.Array
    num_accepted: jax.Array
    is_judged: jax.Array


@jax.jit
def _observe(params: dict[str, Params], state: State, info: Info) -> _Seen:
    row, memory, tally = state.row, state.memory, info.tally
    last = memory.line.confidence.shape[1] - 1
    return _Seen(
        features=memory.features.astype(jnp.float32),
        tokens=jnp.take_along_axis(row.tokens, row.num_tokens[:, None] - 1, axis=1)[:, 0],
        confidence=memory.line.confidence,
        is_whole=~memory.is_fresh & (memory.num_pending == last),
        num_accepted=info.num_emitted - 1,  # the last one is the candidate or the correction
        is_judged=(tally.pending_rejected + tally.branch_rejected + tally.survived) > 0,
    )


def _judged(before: _Seen, after: _Seen, numbers: np.ndarray, is_own: np.ndarray) -> Rounds:
    """The continuations that one round left and the next one judged."""
    chosen = np.asarray(before.is_whole & after.is_judged) & is_own
    found = before.features, before.tokens, before.confidence, after.num_accepted, numbers.astype(np.int32)
    return Rounds(*(np.asarray(leaf)[chosen] for leaf in found))


@functools.partial(jax.jit, static_argnames="target")
def _inputs(target: Model, params: Params, features: jax.Array, tokens: jax.Array) -> jax.Array:
    return jax.vmap(lambda some, token: cuts.inputs(some, target.embed(params, token)))(features, tokens)
