"""`TransformerConfig`: every constant of a Llama-like network, whatever family it is of."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Llama3RopeScaling:
    """Llama 3's stretching of slow rotary frequencies (`rope_type` "llama3").

    Attributes:
        factor: What wavelengths longer than the old context are stretched by.
        low_freq_factor: Wavelengths above `original_max_length / low_freq_factor` are stretched whole.
        high_freq_factor: Wavelengths below `original_max_length / high_freq_factor` stay.
        original_max_length: Positions that the network was made for before stretching.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_length: int


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
        head_dim: Features of one head, an even number.
        rms_norm_eps: What is added to the mean square under the root.
        rope_theta: Base of the rotary frequencies.
        rope_scaling: None, or Llama 3's scaling.
        tie_word_embeddings: Whether the head's weight is the embedding.
        attention_bias: Whether queries, keys and values have biases.
        attention_output_bias: Whether attention's output has a bias.
        mlp_bias: Whether the feed-forward products have biases.
        qk_norm: Whether each query and key head is normalised (Qwen3).
        max_length: Positions that the network was made for; None where it is not said.
        initializer_range: Standard deviation of random weights.

    Raises:
        ValueError: A size is not positive, heads do not divide, or `head_dim` is odd.
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
    rope_scaling: Llama3RopeScaling | None = None
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    max_length: int | None = None
    initializer_range: float = 0.02

    def __post_init__(self):
        sizes = (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_heads",
            "num_kv_heads",
            "head_dim",
        )
        for name in sizes:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: it must be at least 1.")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads={self.num_kv_heads}: "
                "each key and value head serves equally many query heads."
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim}: rotary embedding turns pairs of features, so it must be even.")
