"""`TransformerConfig`: every constant of a Llama-like network, whatever family it is of."""

import dataclasses
from typing import NamedTuple

from jaxspec.networks.families.rope import RopeScaling

ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
"""Of the feed-forward gate, by their names in configs."""

Pattern = tuple[bool, ...]
"""Which layers have something: repeated over them, so that a network's first layers have it where they had it."""


class LayerKind(NamedTuple):
    """In what a layer's attention differs from another's.

    Attributes:
        window: Newest tokens that are seen, a token itself among them; None: all.
        rope_theta: Base of the rotary frequencies; None: nothing is turned.
        rope_scaling: How they are stretched; None: not at all.
    """

    window: int | None
    rope_theta: float | None
    rope_scaling: RopeScaling | None


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """The constants of one network.

    Attributes:
        vocab_size: V, rows of the embedding.
        hidden_size: D.
        intermediate_size: Width between the two halves of a feed-forward layer.
        num_layers: L.
        num_heads: H, query heads.
        num_kv_heads: Key and value heads; H is a multiple of it.
        head_dim: Features of one head.
        rms_norm_eps: What is added to the mean square under the root.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: How they are stretched; None: not at all.
        rope_share: The share of a head's features that is turned, the first ones.
        rope_layers: The layers that turn queries and keys at all; None: every one (SmolLM3 has others).
        window: Newest tokens that a layer with a window sees, a token itself among them.
        window_layers: The layers that have the window; None: every one, if there is one.
        window_rope_theta: Base of their frequencies, which are then not stretched; None: as in the others (Gemma 3).
        tie_word_embeddings: Whether the head's weight is the embedding.
        attention_bias: Whether queries, keys and values have biases.
        attention_output_bias: Whether attention's output has a bias.
        mlp_bias: Whether the feed-forward products have biases.
        fused_projections: Whether queries, keys and values are one product, and gate and up another (Phi-3).
        activation: Of the feed-forward gate, one of `ACTIVATIONS`.
        qk_norm: Whether queries and keys are normalised (Qwen3).
        qk_norm_is_wide: Whether that is over all heads at once, not over each (OLMo 2).
        norm_offset: What is added to the weights of norms: 1 where they are stored as what they differ from it by.
        pre_norms: Whether attention and feed-forward are normalised in front.
        post_norms: Whether they are normalised behind (Gemma 2; OLMo 2 has these alone).
        embedding_multiplier: What embeddings are multiplied by.
        residual_multiplier: What attention and feed-forward are multiplied by before they are added (Granite).
        score_divisor: What attention's scores are divided by; None: the root of `head_dim`.
        score_cap: Scores are kept between it and minus it, c tanh(score / c); None: as they are (Gemma 2).
        logit_divisor: What logits are divided by.
        logit_cap: As `score_cap`, of the logits.
        max_length: Positions that the network was made for; None where it is not said.
        initializer_range: Standard deviation of random weights.

    Raises:
        ValueError: A size is not positive, heads do not divide, an odd number of features is turned, or another value
            that can't be.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    rope_theta: float = 10000.0
    rope_scaling: RopeScaling | None = None
    rope_share: float = 1.0
    rope_layers: Pattern | None = None
    window: int | None = None
    window_layers: Pattern | None = None
    window_rope_theta: float | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    fused_projections: bool = False
    activation: str = "silu"
    qk_norm: bool = False
    qk_norm_is_wide: bool = False
    norm_offset: float = 0.0
    pre_norms: bool = True
    post_norms: bool = False
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    score_divisor: float | None = None
    score_cap: float | None = None
    logit_divisor: float = 1.0
    logit_cap: float | None = None
    max_length: int | None = None
    initializer_range: float = 0.02

    def __post_init__(self):
        sizes = (
            *("vocab_size", "hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads"),
            *("head_dim", "window", "max_length"),
        )
        for name in sizes:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: it must be at least 1.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "each key and value head serves equally many query heads."
            )
        if self.rope_size % 2 or not self.rope_size:
            raise ValueError(
                f"head_dim={self.head_dim}: rotary embedding turns pairs of features, so of {self.rope_share:g} of "
                "them there must be an even number."
            )
        for name in ("rope_theta", "window_rope_theta", "score_divisor", "score_cap", "logit_divisor", "logit_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ValueError(f"{name}={value}: it must be a positive number.")
        if not 0 <= self.rms_norm_eps < float("inf"):
            raise ValueError(f"rms_norm_eps={self.rms_norm_eps}: it must be a number from 0 on.")
        if self.activation not in ACTIVATIONS:
            raise ValueError(f"activation={self.activation!r} is not implemented; supported: {', '.join(ACTIVATIONS)}.")

    @property
    def rope_size(self) -> int:
        """Features of a head that are turned."""
        return int(self.head_dim * self.rope_share)

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]:
        """The kind of each layer."""
        return tuple(self._kind(layer) for layer in range(self.num_layers))

    def _kind(self, layer: int) -> LayerKind:
        window = self.window if _has(self.window_layers, layer) else None
        if not _has(self.rope_layers, layer):
            return LayerKind(window, None, None)
        if window is not None and self.window_rope_theta is not None:
            return LayerKind(window, self.window_rope_theta, None)
        return LayerKind(window, self.rope_theta, self.rope_scaling)


def pattern(layers: list[bool]) -> Pattern | None:
    """The shortest pattern of which the layers are a repetition; None where all have it."""
    if all(layers):
        return None
    repeated = (layers[:size] * len(layers) for size in range(1, len(layers)))
    size = next((size for size, full in enumerate(repeated, 1) if full[: len(layers)] == layers), len(layers))
    return tuple(layers[:size])


def _has(layers: Pattern | None, layer: int) -> bool:
    return layers is None or layers[layer % len(layers)]
