"""AdaEDL (arXiv 2410.18351): a drafted chain that stops where the draft's entropy says that acceptance is unlikely.

The draft's entropy bounds how likely its next token is to be accepted, about 1 - sqrt(entropy_factor · H). Before each
token but the first, a row whose bound lies below its threshold stops drafting; after each round the threshold moves so
that the share of accepted tokens approaches a target. Whether to go on is decided from the distribution before the
draw, and a drawn token is always verified, so the emitted law is the target's.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec import tree as trees
from jaxspec.base import Context, Model, Output, Params
from jaxspec.decode import proposals
from jaxspec.decode.state import Row, State
from jaxspec.decode.trees.chain_drafting import draft_chain
from jaxspec.decode.trees.decoder import TreeDecoder
from jaxspec.decode.trees.drafter import Accepted, Drafted, Sizes
from jaxspec.decode.trees.static import StaticTree


class Threshold(NamedTuple):
    """What a row carries between rounds.

    Attributes:
        value: `[]` float32, λ: drafting stops where the bound lies below it.
        acceptance: `[]` float32, running mean of the rounds' shares of accepted draft tokens.
    """

    value: jax.Array
    acceptance: jax.Array


@dataclasses.dataclass(frozen=True)
class AdaEDL:
    """A drafter of a chain whose length is decided while it is drafted.

    The draft steps that are not taken are saved; the target's forward always has the chain's full width, `max_length`
    + 1 tokens, since a compiled program's shapes are fixed.

    Attributes:
        chain: The longest chain, and how its tokens are drawn and tested.
        threshold: λ of a row's first round.
        entropy_factor: γ_e of the bound 1 - sqrt(γ_e · H).
        target_acceptance: α*, the share of accepted tokens that the threshold aims at.
        step: ε, how far the threshold would move without memory.
        acceptance_memory: β1, the weight of the past in the running acceptance.
        threshold_memory: β2, the weight of the past in the threshold.
    """

    chain: StaticTree
    threshold: float = 0.5
    entropy_factor: float = 0.2
    target_acceptance: float = 0.9
    step: float = 0.01
    acceptance_memory: float = 0.5
    threshold_memory: float = 0.9

    def __post_init__(self) -> None:
        if not self.chain.tree.is_chain:
            raise ValueError(
                f"The tree {self.chain.tree.parents} has siblings: AdaEDL drafts a chain, as tree.chain gives."
            )
        if math.isnan(self.threshold):
            raise ValueError("threshold=nan: give a number; -inf never stops, above 1 drafts one token a round.")
        for name in ("entropy_factor", "step"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name}={value} must be finite and at least 0; {DEFAULTS[name]} is the paper's.")
        for name in ("target_acceptance", "acceptance_memory", "threshold_memory"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ValueError(f"{name}={value} must lie between 0 and 1; {DEFAULTS[name]} is the paper's.")

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        return self.chain.models

    @property
    def sizes(self) -> Sizes:
        """Those of the longest chain, which a round's may fall short of."""
        return self.chain.sizes

    def init(self, params: dict[str, Params], row: Row) -> Threshold:
        """The first round's threshold."""
        del params, row
        return Threshold(jnp.float32(self.threshold), jnp.float32(self.target_acceptance))

    def draft_tree(self, params: dict[str, Params], state: State, key: jax.Array) -> Drafted:
        """The round's draws from the draft: as many as the row's threshold lets through."""

        def goes_on(row: Row, logits: jax.Array) -> jax.Array:
            return self.goes_on(state._replace(row=row), logits)

        propose = self.chain.proposing(key)
        return draft_chain(self.chain.draft, self.chain.tree, params["draft"], state, propose, goes_on)

    def test(
        self, row: Row, drafted: Drafted, node: jax.Array, logits: jax.Array, children: jax.Array, active: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """As of any chain: when it stops depends on no token that is tested behind it."""
        return self.chain.test(row, drafted, node, logits, children, active)

    def resume(
        self, params: dict[str, Params], state: State, drafted: Drafted, output: Output, accepted: Accepted
    ) -> tuple[dict[str, Context], Threshold]:
        """The draft's context, and the threshold adapted to what the row took."""
        contexts, memory = self.chain.resume(params, state, drafted, output, accepted)
        num_drafted = jnp.where(accepted.num_emitted > 0, drafted.is_active.sum(dtype=jnp.int32), 0)
        num_accepted = jnp.minimum(accepted.num_emitted, accepted.num_accepted)
        return contexts, self.adapt(memory, num_drafted, num_accepted)

    def goes_on(self, state: State, logits: jax.Array) -> jax.Array:
        """`[]` bool, whether a token is drafted from these `[V]` draft logits: 1 - sqrt(γ_e · H) >= λ.

        H is that of temperature 1, whatever temperature the draft has.
        """
        entropy = _entropy(proposals.adjusted(self.chain.target, self.chain.draft, state.row, logits))
        return 1.0 - jnp.sqrt(self.entropy_factor * entropy) >= state.memory.value

    def adapt(self, memory: Threshold, num_drafted: jax.Array, num_accepted: jax.Array) -> Threshold:
        """The threshold after a round; the same where nothing was drafted, as in a finished row.

        With A the running acceptance, λ' = λ + ε if A < α*, else λ - ε unless all `max_length` tokens were accepted,
        else λ; and λ becomes β2 λ + (1 - β2) λ', written as λ + (1 - β2) (λ' - λ). Nothing keeps λ between 0 and 1.
        """
        share = num_accepted.astype(jnp.float32) / jnp.maximum(num_drafted, 1).astype(jnp.float32)
        acceptance = self.acceptance_memory * memory.acceptance + (1.0 - self.acceptance_memory) * share
        lower = jnp.where(num_accepted != self.chain.tree.depth, -self.step, 0.0)
        change = jnp.where(acceptance < self.target_acceptance, self.step, lower)
        adapted = Threshold(memory.value + (1.0 - self.threshold_memory) * change, acceptance)
        return jax.tree.map(lambda new, old: jnp.where(num_drafted > 0, new, old), adapted, memory)


DEFAULTS = {field.name: field.default for field in dataclasses.fields(AdaEDL) if field.name != "chain"}


def adaedl(
    target: Model,
    draft: Model,
    max_length: int,
    *,
    threshold: float = 0.5,
    entropy_factor: float = 0.2,
    target_acceptance: float = 0.9,
    step: float = 0.01,
    acceptance_memory: float = 0.5,
    threshold_memory: float = 0.9,
) -> TreeDecoder:
    """AdaEDL: a chain of up to `max_length` drafted tokens that stops early where the draft's entropy is high.

    The paper leaves the first threshold open (it tries .3 to .9). Here it is .5: draft on while the bound says that the
    token is more likely accepted than not, which the default factor says below 1.25 nats. A round moves it by .001 at
    most, so over a hundred tokens it is a setting rather than a start; a cheap draft wants a lower one.

    Args:
        target: The model whose distribution is sampled.
        draft: The model that proposes.
        max_length: The most tokens drafted in a round. The target's forward always has `max_length` + 1 tokens.
        threshold: λ of the first round. -inf never stops; above 1 drafts one token a round.
        entropy_factor: γ_e of the bound 1 - sqrt(γ_e · H) of the acceptance, H in nats.
        target_acceptance: α*, the share of accepted draft tokens that the threshold aims at.
        step: ε of the threshold.
        acceptance_memory: β1, the weight of the past in the running acceptance.
        threshold_memory: β2, the weight of the past in the threshold; 1 keeps it fixed.

    Raises:
        ValueError: A number out of range, or a draft with fewer tokens than the target.
    """
    if max_length < 1:
        raise ValueError(
            f"max_length={max_length}: a draft has at least 1 token; decode.autoregressive decodes without one."
        )
    drafter = AdaEDL(
        StaticTree(target, draft, trees.chain(max_length)),
        threshold=threshold,
        entropy_factor=entropy_factor,
        target_acceptance=target_acceptance,
        step=step,
        acceptance_memory=acceptance_memory,
        threshold_memory=threshold_memory,
    )
    return TreeDecoder(target, drafter)


def _entropy(logits: jax.Array) -> jax.Array:
    """`[]` float32 nats of the softmax of `[V]` logits, of which some may be -inf."""
    logits = logits - logits.max()
    weights = jnp.exp(logits)
    total = weights.sum()
    return jnp.log(total) - jnp.where(weights > 0, weights * logits, 0.0).sum() / total
