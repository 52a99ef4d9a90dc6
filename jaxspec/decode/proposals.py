"""What a draft proposes from its logits: the tokens that it can propose, their distribution, and draws from it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import sampling, verify
from jaxspec.base import Model
from jaxspec.decode.state import Row

PURPOSES = range(4)
"""What a round draws at a node or position: its children, which is accepted, the token if none is, a draft stage."""

PROPOSAL, OUTCOME, RESIDUAL, STAGE = PURPOSES


def check(target: Model, draft: Model, max_children: int, what: str) -> None:
    """Raises where a draft can't propose for a target.

    Args:
        target: The target.
        draft: The draft.
        max_children: The most siblings at one position.
        what: What has them, for the message.

    Raises:
        ValueError: The draft has fewer tokens than the target or than siblings, or proposes tokens that the target
            lacks.
    """
    if draft.vocab_size < target.vocab_size:
        raise ValueError(
            f"The draft has {draft.vocab_size} tokens and the target {target.vocab_size}: both need "
            "one tokenizer, and only padding rows behind the target's may differ. pairs.pair cuts both."
        )
    ids = kept_ids(draft)
    num_tokens = target.vocab_size if ids is None else len(ids)
    if max_children > num_tokens:
        raise ValueError(f"{what} has {max_children} siblings, but the draft only {num_tokens} tokens.")
    if ids is not None and ids[-1] >= target.vocab_size:
        raise ValueError(f"The draft keeps token {ids[-1]}; the target has {target.vocab_size} tokens.")


def kept_ids(draft: Model) -> np.ndarray | None:
    """The tokens that the draft can propose; None: all of them."""
    kept = getattr(draft, "kept_ids", None)
    return None if kept is None else np.asarray(kept, np.int32)


def adjusted(target: Model, draft: Model, row: Row, logits: jax.Array) -> jax.Array:
    """`[P]` float32 logits of the tokens that the draft can propose, with bias; its padding rows are left out."""
    ids = kept_ids(draft)
    return sampling.adjust(row.options, logits if ids is not None else logits[: target.vocab_size], ids)


def draw(
    rule: verify.Rule, row: Row, key: jax.Array, adjusted_logits: jax.Array, count: int
) -> tuple[jax.Array, jax.Array | None]:
    """`[C]` places of children among the P tokens, and the `[P]` distribution that they come from.

    A greedy draft's children are its most probable tokens. Where all rows are greedy there is no distribution.
    """
    logits = sampling.temper_draft(row.options, adjusted_logits)
    if row.options.temperature is None:
        return verify.TOP_K.propose(key, logits, count), None
    places = rule.propose(key, logits, count)
    if row.options.is_greedy_draft is not None:
        places = jnp.where(row.options.is_greedy_draft, verify.TOP_K.propose(key, logits, count), places)
    return places, sampling.distribution(logits)


def token_ids(draft: Model, places: jax.Array) -> jax.Array:
    """The tokens at these places among the ones that the draft can propose."""
    ids = kept_ids(draft)
    return places if ids is None else jnp.asarray(ids)[places]


def over_vocabulary(target: Model, draft: Model, probs: jax.Array) -> jax.Array:
    """`[V]` draft distribution from one over the tokens that the draft can propose: 0 elsewhere."""
    ids = kept_ids(draft)
    if ids is None:
        return probs
    everywhere = jnp.zeros(target.vocab_size, jnp.float32)
    return everywhere.at[ids].set(probs, indices_are_sorted=True, unique_indices=True)


def support(target: Model, draft: Model) -> jax.Array | None:
    """`[V]` bool, the tokens that the draft can propose; None: all of them."""
    ids = kept_ids(draft)
    return None if ids is None else jnp.asarray(np.isin(np.arange(target.vocab_size), ids))


def outcome(
    rule: verify.Rule,
    target: Model,
    draft: Model,
    row: Row,
    logits: jax.Array,
    probs: jax.Array,
    children: jax.Array,
    active: jax.Array,
    is_fixed: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """A rule's outcome at one position (see `verify.Rule.outcome`), from `[V]` target logits and `[P]` draft probs.

    Args:
        rule: For drawn children.
        target: The target.
        draft: The draft.
        row: The row, with its options. Where its draft is greedy, the children were not drawn.
        logits: Of the target.
        probs: Of the draft, as `draw` gave them.
        children: `[C]` tokens.
        active: `[C]` bool.
        is_fixed: `[]` bool, the children were not drawn for another reason; None: there is none.
    """
    target_probs = sampling.target_distribution(row.options, logits)
    draft_probs = over_vocabulary(target, draft, probs)
    arguments = target_probs, draft_probs, children, active, support(target, draft)
    drawn = rule.outcome(*arguments)
    reasons = [reason for reason in (row.options.is_greedy_draft, is_fixed) if reason is not None]
    if not reasons:
        return drawn
    fixed, is_any = verify.TOP_K.outcome(*arguments), functools.reduce(jnp.logical_or, reasons)
    accept, rest = (jnp.where(is_any, *pair) for pair in zip(fixed, drawn, strict=True))
    return accept, rest


def matched(row: Row, logits: jax.Array, children: jax.Array, active: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The outcome at one position of children that depend on nothing but the text in front of them (exact match).

    Arguments and results are those of `outcome`; no draft has a part in them.
    """
    target_probs = sampling.target_distribution(row.options, logits)
    return verify.TOP_K.outcome(target_probs, target_probs, children, active)


def key_of(key: jax.Array, number: jax.Array | int, purpose: int) -> jax.Array:
    """The key of one draw of a round: by the number of its node or position, and its purpose."""
    return jax.random.fold_in(key, number * len(PURPOSES) + purpose)
