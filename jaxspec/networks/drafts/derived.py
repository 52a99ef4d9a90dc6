"""Drafts made of a model's own parts: its first layers (an early exit), or its logits of some tokens only."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.base import Model, Params
from jaxspec.networks.transformer import Transformer
from jaxspec.networks.trimmed import network_of, with_network


def early_exit(target: Model, layers: int) -> Model:
    """A target's own first layers with its own final norm and head, as a model: self-speculation.

    Its parameters are those of `early_exit_params`.

    Args:
        target: A `Transformer`, possibly `Trimmed`.
        layers: How many layers it keeps, fewer than the target has.

    Raises:
        ValueError: `layers` is out of range, or the target is of another kind.
    """
    network = network_of(target)
    num_layers = network.config.num_layers
    if not 1 <= layers < num_layers:
        raise ValueError(f"layers={layers}: an early exit of {num_layers} layers keeps 1 to {num_layers - 1} of them.")
    config = dataclasses.replace(network.config, num_layers=layers)
    first = dataclasses.replace(network, config=config, num_features=min(network.num_features, layers + 1))
    return with_network(target, first)


def early_exit_params(target: Model, params: Params, layers: int) -> Params:
    """Parameters of `early_exit(target, layers)`: the target's own arrays, not copies (scanned layers are sliced)."""
    if network_of(target).scan_layers:
        return {**params, "layers": jax.tree.map(lambda leaf: leaf[:layers], params["layers"])}
    return {**params, "layers": {str(index): params["layers"][str(index)] for index in range(layers)}}


def reduce_vocabulary(model: Model, params: Params, kept_ids: Sequence[int]) -> tuple[Transformer, Params]:
    """A draft that gives logits for some tokens only, by the rows of its head that belong to them (FR-Spec).

    A verifier sees zero draft probability elsewhere, so that every rule stays exact; the draft's step gets cheaper by
    the head's missing rows. All arrays but the new head are the model's own.

    Args:
        model: A `Transformer`, possibly `Trimmed`.
        params: Its parameters.
        kept_ids: Token ids, in any order. The stop tokens should be among them: a draft that can't end a text costs a
            rejection there.

    Raises:
        ValueError: Ids that repeat or are no tokens of the model, none at all, or a model of another kind.
    """
    size = model.vocab_size
    inner = network_of(model)
    if inner.kept_ids is not None:
        raise ValueError(f"This model keeps {len(inner.kept_ids)} tokens already: reduce the whole model instead.")
    ids = np.unique(np.asarray(kept_ids, np.int64))
    if not ids.size or ids.size != len(kept_ids) or ids[0] < 0 or ids[-1] >= size:
        raise ValueError(f"kept_ids must be different token ids between 0 and {size - 1}, and at least one.")
    head = params["embed_tokens" if inner.config.tie_word_embeddings else "lm_head"]["weight"]
    reduced = dataclasses.replace(inner, kept_ids=tuple(ids.tolist()))
    rows = jnp.take(head, jnp.asarray(ids, jnp.int32), axis=0)
    return reduced, reduced.add_blocks({**params, "lm_head": {"weight": rows}})
