"""`TransformerConfig`: every constant of a Llama-family network, read from and written to Hugging Face's `config.json`.

A key of a checkpoint's config is understood, known to be harmless, or refused by name: nothing is ignored in silence.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

FAMILIES = ("llama", "qwen2", "qwen3")
"""The values of `model_type` that are understood. Llama 2 and 3 and SmolLM2 are all "llama"."""


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

    @property
    def family(self) -> str:
        """The `model_type` whose mathematics this is.

        Raises:
            ValueError: No family has this combination of biases and norms.
        """
        biases = (self.attention_bias, self.attention_output_bias, self.mlp_bias)
        if self.qk_norm and biases in ((False, False, False), (True, True, False)):
            return "qwen3"
        if not self.qk_norm and biases == (True, False, False):
            return "qwen2"
        if not self.qk_norm and self.attention_bias == self.attention_output_bias:
            return "llama"
        raise ValueError(
            f"attention_bias, attention_output_bias, mlp_bias = {biases} with qk_norm={self.qk_norm} is none of "
            f"{FAMILIES}, so it has no config.json."
        )

    def to_hugging_face(self) -> dict[str, Any]:
        """A `config.json` that transformers 4 and 5 read.

        Raises:
            ValueError: No family has this combination of biases and norms.
        """
        family = self.family
        written: dict[str, Any] = {
            "architectures": [{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}[family] + "ForCausalLM"],
            "model_type": family,
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "rms_norm_eps": self.rms_norm_eps,
            "rope_theta": self.rope_theta,
            "tie_word_embeddings": self.tie_word_embeddings,
            "initializer_range": self.initializer_range,
        }
        if self.max_length is not None:
            written["max_position_embeddings"] = self.max_length
        if family != "qwen2":
            written["attention_bias"] = self.attention_bias
        if family == "llama":
            written["mlp_bias"] = self.mlp_bias
        if self.rope_scaling is not None:
            written["rope_scaling"] = {
                "rope_type": "llama3",
                "factor": self.rope_scaling.factor,
                "low_freq_factor": self.rope_scaling.low_freq_factor,
                "high_freq_factor": self.rope_scaling.high_freq_factor,
                "original_max_position_embeddings": self.rope_scaling.original_max_length,
            }
        return written


def from_hugging_face(config: Mapping[str, Any]) -> TransformerConfig:
    """The constants of a network from its `config.json`, in the form of transformers 4 or 5.

    Args:
        config: The file's dict.

    Raises:
        ValueError: A key is missing, or would change the mathematics in a way that is not implemented.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"model_type={family!r} is not implemented; supported: {', '.join(FAMILIES)}.")
    _refuse_unknown(config, family)
    missing = [key for key in _REQUIRED if config.get(key) is None]
    if missing:
        raise ValueError(f"The config lacks {', '.join(missing)}.")
    num_heads = config["num_attention_heads"]
    theta, scaling = _read_rope(config)
    bias = bool(config.get("attention_bias"))
    return TransformerConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_layers=config["num_hidden_layers"],
        num_heads=num_heads,
        num_kv_heads=_get(config, "num_key_value_heads", num_heads),
        head_dim=_get(config, "head_dim", 128 if family == "qwen3" else config["hidden_size"] // num_heads),
        rms_norm_eps=float(_get(config, "rms_norm_eps", 1e-6)),
        rope_theta=theta,
        rope_scaling=scaling,
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        attention_bias=bias or family == "qwen2",
        attention_output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias")),
        qk_norm=family == "qwen3",
        max_length=config.get("max_position_embeddings"),
        initializer_range=float(_get(config, "initializer_range", 0.02)),
    )


_REQUIRED = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")

_UNDERSTOOD = frozenset(_REQUIRED) | {
    "model_type",
    "num_key_value_heads",
    "head_dim",
    "rms_norm_eps",
    "rope_theta",
    "rope_scaling",
    "rope_parameters",
    "tie_word_embeddings",
    "max_position_embeddings",
    "initializer_range",
}

_UNDERSTOOD_OF_FAMILY = {
    "llama": frozenset({"attention_bias", "mlp_bias"}),
    "qwen2": frozenset(),
    "qwen3": frozenset({"attention_bias"}),
}

# Bookkeeping, training, or the shape of transformers' own outputs. A sliding window is not in use in Qwen while
# use_sliding_window is false, which is checked below.
_HARMLESS = frozenset(
    [
        "architectures",
        "attention_dropout",
        "bos_token_id",
        "eos_token_id",
        "pad_token_id",
        "unk_token_id",
        "dtype",
        "torch_dtype",
        "transformers_version",
        "use_cache",
        "_name_or_path",
        "name_or_path",
        "tokenizer_class",
        "return_dict",
        "output_hidden_states",
        "output_attentions",
        "is_llama_config",
        "transformers.js_config",
        "unsloth_version",
        "unsloth_fixed",
        "id2label",
        "label2id",
        "problem_type",
        "task_specific_params",
        "_attn_implementation_autoset",
        "use_bfloat16",
        "chunk_size_feed_forward",
    ]
)
_HARMLESS_OF_FAMILY = {
    "llama": frozenset(),
    "qwen2": frozenset({"sliding_window", "max_window_layers"}),
    "qwen3": frozenset({"sliding_window", "max_window_layers"}),
}

# Keys that change the mathematics at any other value than these.
_ONLY: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "pretraining_tp": (1, None),
    "partial_rotary_factor": (1, None),
    "rope_interleaved": (False, None),
    "use_sliding_window": (False, None),
    "sliding_window": (None,),
    "quantization_config": (None,),
    "attention_bias": (False, None),
    "mlp_bias": (False, None),
    "use_qk_norm": (False, None),
    "is_encoder_decoder": (False,),
    "is_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({}, None),
    "num_experts": (0, None),
    "num_local_experts": (0, None),
}


def _refuse_unknown(config: Mapping[str, Any], family: str):
    understood = _UNDERSTOOD | _UNDERSTOOD_OF_FAMILY[family] | _HARMLESS | _HARMLESS_OF_FAMILY[family]
    for key, value in config.items():
        if key in understood:
            continue
        if key == "layer_types":
            if value is not None and any(kind != "full_attention" for kind in value):
                raise ValueError(
                    f"layer_types={value!r} is not implemented; supported: 'full_attention' in every layer."
                )
        elif key not in _ONLY:
            raise ValueError(
                f"{key}={value!r} is not a key of a {family} config that is understood, and it may change the "
                "mathematics. Remove it if it does not."
            )
        elif value not in _ONLY[key]:
            allowed = " or ".join(repr(allowed) for allowed in _ONLY[key])
            raise ValueError(f"{key}={value!r} is not implemented for {family}; supported: {allowed}.")


_LLAMA3_KEYS = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")


def _read_rope(config: Mapping[str, Any]) -> tuple[float, Llama3RopeScaling | None]:
    """Theta and scaling: transformers 5 writes both under `rope_parameters`, transformers 4 under two keys."""
    rope = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    theta = float(_get(rope, "rope_theta", _get(config, "rope_theta", 10000.0)))
    kind = _get(rope, "rope_type", _get(rope, "type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type={kind!r} is not implemented; supported: 'default', 'llama3'.")
    if _get(rope, "partial_rotary_factor", 1) != 1:
        raise ValueError(f"partial_rotary_factor={rope['partial_rotary_factor']!r} is not implemented; supported: 1.")
    known = ("rope_theta", "rope_type", "type", "partial_rotary_factor", *(_LLAMA3_KEYS if kind == "llama3" else ()))
    for key, value in rope.items():
        if key not in known:
            raise ValueError(f"{key}={value!r} is not understood among the parameters of rope_type {kind!r}.")
    if kind == "default":
        return theta, None
    original = _get(rope, "original_max_position_embeddings", config.get("max_position_embeddings"))
    missing = [key for key in _LLAMA3_KEYS[:3] if rope.get(key) is None]
    if missing or original is None:
        missing += ["original_max_position_embeddings"] if original is None else []
        raise ValueError(f"rope_type 'llama3' lacks {', '.join(missing)}.")
    scaling = Llama3RopeScaling(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_max_length=int(original),
    )
    return theta, scaling


def _get(config: Mapping[str, Any], key: str, otherwise: Any) -> Any:
    """The value of a key, or `otherwise` where it is absent or null."""
    value = config.get(key)
    return otherwise if value is None else value
