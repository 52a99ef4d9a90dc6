"""Where a drafted continuation is cut: SpecBranch's H-RAD, and the simpler cuts that it is compared with.

When a branch survives, its continuation becomes pending, up to the cut; the next fork is at the token behind it. H-RAD
(hybrid rollback-aware drafting) guesses from the target's features whether none, some or all of the continuation will
be accepted. A cut reads committed tokens, the target's features and the draft's confidence, and decides *how many*
tokens are pending; the token at the cut is never dropped, it is the first candidate of the next fork. So a cut can
change the speed, and never the law of the output.
"""

import dataclasses
from typing import Any, NamedTuple, Protocol

import chex
import jax
import jax.numpy as jnp

from jaxspec.base import Params

NONE, PARTIAL, ALL = range(3)
"""H-RAD's classes: how much of a continuation is accepted."""

NUM_CLASSES = 3


class Cutting(NamedTuple):
    """Where a continuation is cut.

    Attributes:
        kept: `[]` int32, how many of its tokens become pending, 0 to G - 1.
        label: `[]` int32, H-RAD's class; for other cuts the class that this amounts to.
    """

    kept: jax.Array
    label: jax.Array


class Cut(Protocol):
    """A rule for the cut: a frozen dataclass, so that decoders that use it hash by value.

    Attributes:
        reads_features: Whether it reads the target's features and its own parameters, `params["hrad"]`.
    """

    reads_features: bool

    def __call__(
        self, params: Params, features: jax.Array | None, embedding: jax.Array | None, confidence: jax.Array
    ) -> Cutting:
        """The cut of one continuation.

        Args:
            params: The cut's own parameters; None where it has none.
            features: `[K, D]` of the last K target layers at the newest verified position, in front of the newest
                committed token; None where they are not read.
            embedding: `[D]` the target's embedding of the newest committed token, likewise.
            confidence: `[G]` the draft's confidence in the tokens behind it; see `BranchDecoder`.
        """
        ...


@dataclasses.dataclass(frozen=True)
class KeepAll:
    """Cuts nothing: the fork is behind the whole continuation, as in PEARL."""

    reads_features = False

    def __call__(
        self, params: Params, features: jax.Array | None, embedding: jax.Array | None, confidence: jax.Array
    ) -> Cutting:
        return Cutting(jnp.asarray(confidence.shape[0] - 1, jnp.int32), jnp.asarray(ALL, jnp.int32))


@dataclasses.dataclass(frozen=True)
class Confidence:
    """Cuts in front of the first token whose confidence is below `epsilon`: the implicit signal alone.

    Attributes:
        epsilon: 0 to 1; 0 cuts nothing.
    """

    epsilon: float
    reads_features = False

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    def __call__(
        self, params: Params, features: jax.Array | None, embedding: jax.Array | None, confidence: jax.Array
    ) -> Cutting:
        count = first_below(confidence, self.epsilon)
        last = confidence.shape[0] - 1
        label = jnp.where(count == 0, NONE, jnp.where(count == last, ALL, PARTIAL))
        return Cutting(count, label.astype(jnp.int32))


class Network(Protocol):
    """What classifies: a hashable description, such as `networks.MLP`."""

    def apply(self, params: Params, inputs: jax.Array) -> jax.Array:
        """`[3]` logits of the classes from `[F]` inputs."""
        ...


@dataclasses.dataclass(frozen=True)
class HRad:
    """SpecBranch's cut. Class none keeps nothing, all keeps everything, partial cuts by confidence.

    Attributes:
        network: Classifies `inputs(features, embedding)`; its parameters are `params["hrad"]`.
        epsilon: The confidence below which class partial cuts, 0 to 1.
    """

    network: Any
    epsilon: float
    reads_features = True

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)

    def __call__(
        self, params: Params, features: jax.Array | None, embedding: jax.Array | None, confidence: jax.Array
    ) -> Cutting:
        assert features is not None
        assert embedding is not None
        logits = self.network.apply(params, inputs(features, embedding))
        chex.assert_shape(logits, (NUM_CLASSES,))
        label = jnp.argmax(logits).astype(jnp.int32)
        last = confidence.shape[0] - 1
        count = jnp.where(label == NONE, 0, jnp.where(label == ALL, last, first_below(confidence, self.epsilon)))
        return Cutting(count.astype(jnp.int32), label)


KEEP_ALL = KeepAll()


def inputs(features: jax.Array, embedding: jax.Array) -> jax.Array:
    """`[(K + 1) * D]` float32: what H-RAD's network reads, from `[K, D]` features and the `[D]` newest embedding."""
    return jnp.concatenate([features.reshape(-1), embedding]).astype(jnp.float32)


def labels(num_accepted: Any, num_drafted: int) -> Any:
    """H-RAD's class of continuations of `num_drafted` tokens, by how many of them were accepted; any shape."""
    return jnp.where(num_accepted == 0, NONE, jnp.where(num_accepted >= num_drafted, ALL, PARTIAL)).astype(jnp.int32)


def first_below(confidence: jax.Array, epsilon: float) -> jax.Array:
    """`[]` int32 tokens in front of the first of G whose confidence is below `epsilon`; at most G - 1."""
    return jnp.argmax(jnp.append(confidence[:-1] < epsilon, True)).astype(jnp.int32)


def _check_epsilon(epsilon: float) -> None:
    if not 0.0 <= epsilon <= 1.0:
        raise ValueError(f"epsilon={epsilon}: a confidence lies between 0 and 1, and so does its threshold.")
