"""What proposes in a tree decoder: the protocol of a drafter, what it gives a round, and what it learns of it.

A drafter is handed in, so that a new way to propose touches no decoder: a draft model and a static tree
(`static.StaticTree`), a chain that stops by itself (`adaptive.AdaEDL`), earlier text without any model, a head that
reads the target's features, a tree whose shape is chosen in the round.
"""

from typing import Any, NamedTuple, Protocol

import jax

from jaxspec.base import Context, Model, Output, Params
from jaxspec.decode.state import Row, State
from jaxspec.decode.trees.structure import Structure


class Sizes(NamedTuple):
    """What is known of a drafter's trees before anything is compiled.

    Attributes:
        num_nodes: N, with the root.
        depth: Edges from the root to the deepest node, at most; at least 1.
        max_children: C. With 1 the tree is a chain.
        forwards: The forwards of a full round by model, each by its number of tokens; without the target's.
    """

    num_nodes: int
    depth: int
    max_children: int
    forwards: dict[str, tuple[int, ...]]


class Drafted(NamedTuple):
    """A drafted tree.

    Attributes:
        tokens: `[N]` int32 node tokens; the root's is the row's newest.
        is_active: `[N]` bool, nodes that were proposed; not the root. The siblings that were not are the last of them,
            and have no active descendants.
        structure: Who is whose child.
        probs: What `Drafter.test` reads beside; distributions of a draft, say.
        block: What `Drafter.resume` reads beside; the entries of a draft, say.
    """

    tokens: jax.Array
    is_active: jax.Array
    structure: Structure
    probs: Any = None
    block: Any = ()


class Accepted(NamedTuple):
    """What became of a drafted tree.

    Attributes:
        row: The row behind the round.
        tokens: `[depth + 1]` int32, of which the row took the first ones.
        num_emitted: `[]` int32, how many: 0 in a finished row.
        path: `[depth + 1]` int32, the accepted nodes from the root, then the last of them again.
        num_accepted: `[]` int32, how many nodes below the root are on it; the row may have taken fewer.
        token: `[]` int32, drawn behind it: the correction or the bonus token; `sampling.NOTHING` where the target's
            logits give none.
    """

    row: Row
    tokens: jax.Array
    num_emitted: jax.Array
    path: jax.Array
    num_accepted: jax.Array
    token: jax.Array


class Drafter(Protocol):
    """Proposes a tree each round: a frozen, hashable dataclass with pure functions, written for one row.

    It may have `extra_params`, the names in `params` of what is no model and it needs all the same.
    """

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        """Its own models by their names in `params`, each with its lag (see `Decoder`); `{}`: it has none."""
        ...

    @property
    def sizes(self) -> Sizes:
        """What is static of its trees."""
        ...

    def init(self, params: dict[str, Params], row: Row) -> Any:
        """What it carries between rounds, before the first: the `State.memory`; `()`: nothing."""
        ...

    def draft_tree(self, params: dict[str, Params], state: State, key: jax.Array) -> Drafted:
        """The round's tree.

        Args:
            params: Parameters by name.
            state: At the beginning of the round, with a row whose options have their past (`decode.state.reading`).
            key: The round's; a draw's own is folded from it (`proposals.key_of`, purpose `PROPOSAL`).
        """
        ...

    def test(
        self, row: Row, drafted: Drafted, node: jax.Array, logits: jax.Array, children: jax.Array, active: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """A node's `[C]` acceptance probabilities, and the `[V]` law of the token if all fail: see `verify.Rule`.

        The rule has to be one for children that are proposed as `draft_tree` does: `proposals.outcome` for drawn ones,
        `proposals.matched` for children that depend on nothing but what is in front of them.

        Args:
            row: With the sampling options, whose past is that of the node.
            drafted: The tree.
            node: `[]` int32.
            logits: `[V]` of the target there.
            children: `[C]` int32 tokens in draw order.
            active: `[C]` bool, the ones that are there.
        """
        ...

    def resume(
        self, params: dict[str, Params], state: State, drafted: Drafted, output: Output, accepted: Accepted
    ) -> tuple[dict[str, Context], Any]:
        """The contexts of its models and its memory, behind a round.

        Args:
            params: Parameters by name.
            state: At the beginning of the round.
            drafted: Its tree.
            output: The target's, over the N nodes; with features where the target gives them.
            accepted: What became of the tree.
        """
        ...
