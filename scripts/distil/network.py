"""The draft that is distilled: where a run begins, and what of it is trained. A run is a folder."""

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from distil.data import Data, weigh

from jaxspec import networks, training
from jaxspec.networks import Transformer, TransformerConfig

CHECKPOINT = "checkpoint.safetensors"
KEPT_IDS = "kept_ids.npy"


@dataclasses.dataclass(frozen=True)
class Draft:
    """What is trained: the layers, the last norm, and the embeddings of the kept tokens. The others stay.

    Attributes:
        model: The whole draft.
        frozen: `[V, D]` embeddings as they began.
        kept_ids: `[C]`.
    """

    model: Transformer
    frozen: jax.Array
    kept_ids: np.ndarray

    @property
    def kept_index(self) -> np.ndarray:
        return training.positions_of(self.kept_ids, self.model.vocab_size)

    def whole(self, params: Any) -> Any:
        """Parameters of the model."""
        embedding = self.frozen.at[self.kept_ids].set(params["kept"], unique_indices=True, indices_are_sorted=True)
        return {"embed_tokens": {"weight": embedding}, "layers": params["layers"], "norm": params["norm"]}

    def hidden(self, params: Any, tokens: jax.Array) -> jax.Array:
        """`[B, T, D]` in front of the head."""
        found = training.forward(self.model, self.whole(params), tokens).hidden
        assert found is not None
        return found[:, :, -1]

    def logits(self, params: Any, tokens: jax.Array) -> jax.Array:
        """`[B, T, C]` over the kept tokens."""
        return self.hidden(params, tokens) @ params["kept"].T


def begin(options: argparse.Namespace, data: Data) -> None:
    """Writes where a run begins, and the kept ids."""
    target, target_params = networks.load(options.target)
    emitted = weigh(data, ~data.is_held_out, 0.0)[:-1] > 0
    counts = np.bincount(data.tokens[1:][emitted], minlength=target.vocab_size)
    kept_ids = training.kept_tokens(counts, options.kept, options.stop_ids)
    if options.prune:
        model, params = pruned(target, target_params, options.prune)
    else:
        model, params = fresh(options, target, target_params, counts, kept_ids)
    networks.save(Path(options.out) / "start", model, params)
    np.save(Path(options.out) / KEPT_IDS, kept_ids)


def fresh(
    options: argparse.Namespace, target: Transformer, target_params: Any, counts: np.ndarray, kept_ids: np.ndarray
) -> tuple[Transformer, Any]:
    """A new draft whose embedding holds the principal components of the target's, by how often each token is met."""
    config = TransformerConfig(
        vocab_size=target.vocab_size,
        hidden_size=options.width,
        intermediate_size=options.intermediate,
        num_layers=options.layers,
        num_heads=options.heads,
        num_kv_heads=options.kv_heads,
        head_dim=options.head_dim,
        rms_norm_eps=1e-5,
        rope_theta=options.rope_theta,
        tie_word_embeddings=True,
        max_length=target.max_length,
    )
    model = Transformer(config)
    embedding = np.asarray(target_params["embed_tokens"]["weight"], np.float64)
    _, directions = np.linalg.eigh(embedding.T @ (embedding * np.sqrt(counts + 1.0)[:, None]))
    principal = embedding @ directions[:, ::-1][:, : options.width]
    principal /= np.linalg.norm(principal[kept_ids], axis=1).mean()  # logits of about unit deviation to begin with
    params = model.init(jax.random.key(options.seed))
    return model, {**params, "embed_tokens": {"weight": jnp.asarray(principal, jnp.float32)}}


def pruned(target: Transformer, target_params: Any, layers: list[int]) -> tuple[Transformer, Any]:
    """A draft of some of the target's own layers between its embedding and its norm.

    Raises:
        ValueError: A layer that the target lacks, or a target with a head of its own.
    """
    if not all(0 <= layer < target.config.num_layers for layer in layers):
        raise ValueError(f"--prune {layers}: the target has the layers 0 to {target.config.num_layers - 1}.")
    if not target.config.tie_word_embeddings:
        raise ValueError("--prune needs a target whose head is its embedding, and this one has a head of its own.")
    model = Transformer(dataclasses.replace(target.config, num_layers=len(layers)))
    kept = {str(place): target_params["layers"][str(layer)] for place, layer in enumerate(layers)}
    return model, {**target_params, "layers": kept}


def open_run(folder: Path) -> tuple[Draft, Any]:
    """A run's draft, and the parameters that it began with."""
    model, params = networks.load(folder / "start", num_features=1, columns=False)
    draft = Draft(model, params["embed_tokens"]["weight"], np.load(folder / KEPT_IDS))
    kept = params["embed_tokens"]["weight"][draft.kept_ids]
    return draft, {"kept": kept, "layers": params["layers"], "norm": params["norm"]}


def trained(folder: Path) -> tuple[Draft, Any]:
    """A run's draft and the parameters of its last checkpoint."""
    draft, params = open_run(folder)
    nothing: Any = None  # of the optimiser and the step, which are not read
    return draft, training.restore(folder / CHECKPOINT, training.TrainState(params, nothing, nothing)).params
