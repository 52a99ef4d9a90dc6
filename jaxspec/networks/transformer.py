"""`Transformer`: Llama, SmolLM2, Qwen2 and Qwen3 as a `jaxspec.base.Model`, one forward over n tokens in flight.

nnx modules describe the network, with weights stored `[out, in]` as checkpoints have them. They hold no cache: a layer
reads the context, writes the block and attends to both. Activations are `[n, D]`; a product is either of two forms:

    columns   `(weight @ x.T).T`   the faster one on CPU for few tokens: the weight streams through as it lies
    rows      `x @ weight.T`

and layers run either one after another in the program (unrolled) or in a `lax.scan` over stacked weights and caches
(`running`).
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp
from flax import nnx

from jaxspec.base import Context, Entries, Output, Params
from jaxspec.networks import running
from jaxspec.networks.attention import KeysValues
from jaxspec.networks.families import TransformerConfig
from jaxspec.networks.families.rope import trained_length
from jaxspec.networks.form import Form
from jaxspec.networks.layers import Ends, Layer, scaled
from jaxspec.networks.running import Placed
from jaxspec.networks.weights import products

DTYPES = ("float32", "bfloat16", "float16")


@dataclasses.dataclass(frozen=True)
class Transformer:
    """A decoder of the Llama family.

    Attributes:
        config: The network's constants.
        dtype: Of weights, activations and entries; norms, rotations and softmax run in float32.
        num_features: K, how many of the last hidden states `Output.hidden` holds, in order. They are those of Hugging
            Face's `output_hidden_states`: the last one is after the final norm. 0 gives None.
        columns: Whether products are taken of columns, `weight @ x.T`.
        scan_layers: Whether layers are scanned. Weights and entries are then stacked over layers; see `stack`.
        blocks: Whether parameters hold every weight a second time, in blocks, for calls of few tokens; see
            `weights.products`.
        kept_ids: The ascending tokens that it gives logits for, `[n, len(kept_ids)]`, by a head of its own that has
            their rows only (a draft's reduced vocabulary, FR-Spec); None: all. See `derived.reduce_vocabulary`.
        context_length: Positions that it is used for; None: what it was made for. It matters for rotation that depends
            on the length (`families.rope`): without it such a network is used up to its old length, unstretched.
    """

    config: TransformerConfig
    dtype: str = "float32"
    num_features: int = 0
    columns: bool = True
    scan_layers: bool = False
    blocks: bool = False
    kept_ids: tuple[int, ...] | None = None
    context_length: int | None = None

    def __post_init__(self):
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype={self.dtype!r}: supported are {', '.join(DTYPES)}.")
        if not 0 <= self.num_features <= self.config.num_layers + 1:
            raise ValueError(
                f"num_features={self.num_features}: a network of {self.config.num_layers} layers has "
                f"{self.config.num_layers + 1} hidden states, the embedding included."
            )
        if self.blocks and (self.scan_layers or not self.columns):
            raise ValueError(
                f"blocks=True with columns={self.columns}, scan_layers={self.scan_layers}: blocks are for products "
                "of columns and layers that are not scanned. Leave blocks out, or set columns=True, scan_layers=False."
            )
        if self.context_length is not None and self.context_length < 1:
            raise ValueError(f"context_length={self.context_length}: it must be at least 1.")

    @property
    def vocab_size(self) -> int:
        return self.config.vocab_size

    @property
    def max_length(self) -> int | None:
        if self.context_length is not None:
            return self.context_length
        trained = trained_length(self.config.rope_scaling)
        return self.config.max_length if trained is None else trained

    @property
    def has_tied_head(self) -> bool:
        """Whether the embedding is the head too."""
        return self.config.tie_word_embeddings and self.kept_ids is None

    @property
    def form(self) -> Form:
        """What its layers read."""
        num_logits = self.vocab_size if self.kept_ids is None else len(self.kept_ids)
        return Form(self.config, self.dtype, self.columns, self.blocks, num_logits, self.has_tied_head)

    def shapes(self) -> Params:
        """The tree of parameters as `jax.ShapeDtypeStruct`, named as in a checkpoint, layers apart, without blocks."""
        return dataclasses.replace(self, blocks=False)._shapes()

    def init(self, key: jax.Array) -> Params:
        """Random parameters: normal weights, zero biases, norms that change nothing. The key is consumed."""
        leaves, tree = jax.tree_util.tree_flatten_with_path(self.shapes())
        keys = jax.random.split(key, len(leaves))

        def draw(path: Any, shape: jax.ShapeDtypeStruct, key: jax.Array) -> jax.Array:
            if path[-1].key == "bias":
                return jnp.zeros(shape.shape, shape.dtype)
            if len(shape.shape) == 1:
                return jnp.full(shape.shape, 1 - self.config.norm_offset, shape.dtype)
            return (self.config.initializer_range * jax.random.normal(key, shape.shape)).astype(shape.dtype)

        drawn = [draw(path, shape, key) for (path, shape), key in zip(leaves, keys, strict=True)]
        return self.stack(jax.tree.unflatten(tree, drawn))

    def stack(self, params: Params) -> Params:
        """Parameters as `apply` takes them, from a tree as a checkpoint has it: layers stacked, or blocks added."""
        if not self.scan_layers:
            return self.add_blocks(params)
        layers = [params["layers"][str(index)] for index in range(self.config.num_layers)]
        return {**params, "layers": jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)}

    def unstack(self, params: Params) -> Params:
        """Parameters with layers apart, as a checkpoint has them: the inverse of `stack`."""
        if not self.scan_layers:
            return _with_blocks(self.shapes(), params) if self.blocks else params
        layers = {
            str(i): jax.tree.map(lambda leaf, i=i: leaf[i], params["layers"]) for i in range(self.config.num_layers)
        }
        return {**params, "layers": layers}

    def add_blocks(self, params: Params) -> Params:
        """Parameters with the blocks that `apply` takes, and no others; every other array is the one that was given."""
        return _with_blocks(self._shapes(), params) if self.blocks else params

    def empty(self, slots: int) -> Entries:
        """Zero entries of `slots` tokens: `KeysValues` of each layer, or of all, stacked `[L, …]`, when scanned.

        A network with windows stores positions too: `Placed`.
        """
        heads, head_dim, num_layers = self.config.num_kv_heads, self.config.head_dim, self.config.num_layers
        lead = (num_layers,) if self.scan_layers else ()

        def layer() -> KeysValues:
            keys, values = (*lead, heads, head_dim, slots), (*lead, heads, slots, head_dim)
            return KeysValues(jnp.zeros(keys, self.dtype), jnp.zeros(values, self.dtype))

        layers = layer() if self.scan_layers else tuple(layer() for _ in range(num_layers))
        return layers if self.config.window is None else Placed(layers, jnp.zeros(slots, jnp.int32))

    def embed(self, params: Params, token: jax.Array) -> jax.Array:
        """`[D]` input embedding of one token."""
        return scaled(params["embed_tokens"]["weight"][token], self.config.embedding_multiplier)

    def apply(
        self,
        params: Params,
        tokens: jax.Array,
        positions: jax.Array,
        context: Context,
        block: Entries,
        slot: jax.Array | int,
        mask: jax.Array,
    ) -> Output:
        """One forward over n tokens in flight; see `jaxspec.base.Model.apply`.

        Raises:
            ValueError: Parameters of another network, or with blocks where the model has none, or without.
        """
        self._check(params)
        chex.assert_shape([tokens, positions], (tokens.shape[0],))
        chex.assert_shape(mask, (tokens.shape[0], None))
        ends: Ends = nnx.merge(
            _split(Ends, self.form).graph, {name: params[name] for name in params if name != "layers"}
        )
        states, block = running.run(
            self.scan_layers,
            _split(Layer, self.form).graph,
            params["layers"],
            ends.embed(tokens),
            context.entries,
            block,
            running.Call(self.config, self.max_length, positions, context.length, slot, mask),
        )
        final = ends.normalise(states[-1])
        hidden = None
        if self.num_features:
            kept = [*states[:-1], final][-self.num_features :]
            hidden = jnp.stack(kept, axis=1)
        return Output(ends.logits(final), hidden, block)

    def _shapes(self) -> Params:
        """As `shapes`, with blocks."""
        layers = {str(index): _split(Layer, self.form).shapes for index in range(self.config.num_layers)}
        return {**_split(Ends, self.form).shapes, "layers": layers}

    def _check(self, params: Params) -> None:
        layers = _split(Layer, self.form).shapes if self.scan_layers else self._shapes()["layers"]
        expected, found = _names({**_split(Ends, self.form).shapes, "layers": layers}), _names(params)
        if expected != found:
            raise ValueError(
                f"These are no parameters of this Transformer, which has scan_layers={self.scan_layers} and "
                f"blocks={self.blocks}: they lack {_some(expected - found)}, and {_some(found - expected)} should not "
                "be there. Take those that `init` or `networks.load` gave with this very model, or for a checkpoint's "
                "`model.stack(params)`."
            )


def _with_blocks(shapes: Params, params: Params) -> Params:
    """Parameters with blocks where the shapes have them, made where they are missing, and nowhere else."""
    if not isinstance(shapes, dict):
        return params
    whole = {name: _with_blocks(shapes[name], params[name]) for name in params if name != "blocks"}
    if "blocks" in shapes:
        whole["blocks"] = params["blocks"] if "blocks" in params else _blocks_of(params["weight"])
    return whole


_blocks_of = jax.jit(products.blocks_of)


def _names(params: Params) -> set[str]:
    """Dotted paths of the leaves."""
    leaves = jax.tree_util.tree_leaves_with_path(params)
    return {jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves}


def _some(names: set[str]) -> str:
    """The first of the names, and how many more there are."""
    first, *others = sorted(names) or ["nothing"]
    return first + (f" (and {len(others)} more)" if others else "")


class _Split(NamedTuple):
    """A module without arrays: its structure, and the shapes of its parameters as a nested dict."""

    graph: nnx.GraphDef[Any]
    shapes: Params


@functools.lru_cache(maxsize=64)
def _split(kind: type[Ends] | type[Layer], form: Form) -> _Split:
    graph, state = nnx.split(nnx.eval_shape(functools.partial(kind, form)))
    return _Split(graph, nnx.to_pure_dict(state))
