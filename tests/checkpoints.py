"""Random checkpoints of each family, the models that they make, and what transformers says of them."""

import copy
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import cache
from jaxspec.base import Context
from jaxspec.networks import Transformer, from_hugging_face

DATA = Path(__file__).parent / "data"

COMMON = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama2": {**COMMON, "model_type": "llama", "num_key_value_heads": 4},
    "llama3": {
        **COMMON,
        "model_type": "llama",
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 256,
        },
    },
    "smollm2": {**COMMON, "model_type": "llama", "tie_word_embeddings": True, "rope_theta": 1000.0},
    "llama-biases": {**COMMON, "model_type": "llama", "attention_bias": True, "mlp_bias": True},
    "qwen2": {**COMMON, "model_type": "qwen2", "tie_word_embeddings": True, "use_sliding_window": False},
    "qwen3": {**COMMON, "model_type": "qwen3", "head_dim": 12, "rms_norm_eps": 1e-6},
    "yarn": {
        **COMMON,
        "model_type": "llama",
        "rope_theta": 500.0,
        "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    },
    "mistral": {**COMMON, "model_type": "mistral", "sliding_window": 5},
    "phi3": {
        **COMMON,
        "model_type": "phi3",
        "partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 512,
        "rope_scaling": {
            "rope_type": "longrope",
            "short_factor": [1.0, 1.1, 1.3],
            "long_factor": [1.5, 3.0, 6.0],
        },
    },
    "olmo2": {**COMMON, "model_type": "olmo2"},
    "granite": {
        **COMMON,
        "model_type": "granite",
        "embedding_multiplier": 3.0,
        "residual_multiplier": 0.5,
        "attention_multiplier": 0.25,
        "logits_scaling": 2.0,
    },
    "smollm3": {**COMMON, "model_type": "smollm3", "no_rope_layers": [1, 0], "rope_theta": 1000.0},
    "gemma2": {
        **COMMON,
        "model_type": "gemma2",
        "hidden_act": "gelu_pytorch_tanh",
        "head_dim": 12,
        "query_pre_attn_scalar": 9,
        "sliding_window": 5,
        "attn_logit_softcapping": 4.0,
        "final_logit_softcapping": 6.0,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        **{key: value for key, value in COMMON.items() if key != "hidden_act"},
        "model_type": "gemma3_text",
        "head_dim": 12,
        "query_pre_attn_scalar": 9,
        "sliding_window": 5,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_theta": 1000.0,
        "rope_local_base_freq": 100.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        "tie_word_embeddings": True,
    },
}

LENGTHS = {"original_max_position_embeddings": 256, "max_position_embeddings": 1024}
FACTORS = {"short_factor": [1.0, 1.1, 1.3], "long_factor": [1.5, 3.0, 6.0], "partial_rotary_factor": 0.75}
ROPES: dict[str, tuple[dict[str, Any], int]] = {
    "linear": ({"rope_scaling": {"type": "linear", "factor": 4.0}}, 1024),
    "dynamic": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 1000),
    "dynamic-long": ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, 4000),
    "yarn": ({**LENGTHS, "rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 16}}, 1024),
    "yarn-mscale": (
        {**LENGTHS, "rope_scaling": {"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0}},
        1024,
    ),
    "longrope": ({**LENGTHS, "rope_parameters": {"rope_type": "longrope", **FACTORS}}, 256),
    "longrope-long": ({**LENGTHS, "rope_parameters": {"rope_type": "longrope", **FACTORS}}, 257),
    "llama3": ({"rope_parameters": FAMILIES["llama3"]["rope_scaling"], "rope_theta": 500.0}, 1024),
}
"""Ways of stretching, in either spelling, and the length that a network is used for."""

TOKENS = np.random.default_rng(3).integers(0, 61, 12).astype(np.int32)
POSITIONS = np.array([0, 1, 2, 3, 50, 51, 52, 53, 500, 501, 502, 503], np.int32)


def positions_of(config: dict[str, Any]) -> np.ndarray:
    """`POSITIONS`; without gaps for a network with windows, since transformers counts tokens for those."""
    return POSITIONS if from_hugging_face(config).window is None else np.arange(490, 502, dtype=np.int32)


def random_checkpoint(config: dict[str, Any], seed: int = 0) -> dict[str, np.ndarray]:
    """Seeded tensors by their checkpoint names, in float32, large enough for attention to be far from uniform."""
    generator = np.random.default_rng(seed)
    checkpoint, norm_offset = {}, from_hugging_face(config).norm_offset
    for path, shape in jax.tree_util.tree_leaves_with_path(Transformer(from_hugging_face(config)).shapes()):
        name = ".".join(entry.key for entry in path)
        noise = generator.standard_normal(shape.shape).astype(np.float32)
        if name.endswith("norm.weight"):
            tensor = 1 - norm_offset + 0.2 * noise
        elif name.endswith("bias"):
            tensor = 0.3 * noise
        else:
            tensor = 1.5 * noise / np.sqrt(shape.shape[-1], dtype=np.float32)
        checkpoint[name if name.startswith("lm_head") else f"model.{name}"] = tensor
    return checkpoint


def torch_reference(config: dict[str, Any], checkpoint: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """`hidden` `[n, L + 1, D]` and `logits` `[n, V]` of transformers+torch in float32."""
    import torch  # pyright: ignore[reportMissingImports] (the extra `torch`)
    from transformers import AutoConfig, AutoModelForCausalLM

    # Without its own attention transformers would leave out Gemma 2's caps.
    network = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**{**config, "pad_token_id": 0}), attn_implementation="eager"
    ).eval()
    lost = network.load_state_dict({name: torch.tensor(array) for name, array in checkpoint.items()}, strict=False)
    assert not lost.unexpected_keys
    assert set(lost.missing_keys) <= ({"lm_head.weight"} if from_hugging_face(config).tie_word_embeddings else set())
    with torch.no_grad():
        output = network(
            torch.tensor(TOKENS[None], dtype=torch.long),
            # Without a mask transformers takes a gap in the positions for a second sequence.
            attention_mask=torch.ones(1, len(TOKENS), dtype=torch.long),
            position_ids=torch.tensor(positions_of(config)[None], dtype=torch.long),
            output_hidden_states=True,
        )
    hidden = torch.stack(output.hidden_states, dim=2)[0]
    return {"hidden": hidden.numpy(), "logits": output.logits[0].numpy()}


def torch_ropes() -> dict[str, np.ndarray]:
    """For each of `ROPES` the frequencies, and behind them the factor of cosines and sines, by transformers+torch."""
    from transformers import AutoConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    found = {}
    for name, (entries, length) in ROPES.items():
        config = AutoConfig.for_model(**{**COMMON, "model_type": "llama", **copy.deepcopy(entries)})
        frequencies, factor = ROPE_INIT_FUNCTIONS[config.rope_parameters["rope_type"]](config, "cpu", length)
        found[name] = np.append(frequencies.numpy(), factor)
    return found


def build(family: str = "qwen3", **options: Any) -> tuple[Transformer, Any]:
    """A tiny model of a family with its seeded parameters."""
    model = Transformer(from_hugging_face(FAMILIES[family]), **options)
    params: dict[str, Any] = {}
    for name, tensor in random_checkpoint(FAMILIES[family]).items():
        *parents, leaf = name.removeprefix("model.").split(".")
        branch = functools.reduce(lambda branch, parent: branch.setdefault(parent, {}), parents, params)
        branch[leaf] = jnp.asarray(tensor, options.get("dtype", "float32"))
    return model, model.stack(params)


@functools.partial(jax.jit, static_argnums=0)
def apply(model, params, tokens, positions, context, block, slot, mask):
    return model.apply(params, tokens, positions, context, block, slot, mask)


def causal(n: int) -> jax.Array:
    return jnp.tril(jnp.ones((n, n), bool))


def prefill(model, params, tokens, slots=32, positions=None):
    """The output for a whole prompt, and a context of `slots` slots that holds it."""
    n = len(tokens)
    positions = jnp.arange(n) if positions is None else jnp.asarray(positions)
    context = Context(model.empty(slots), jnp.int32(0))
    output = apply(model, params, jnp.asarray(tokens), positions, context, model.empty(n), 0, causal(n))
    return output, cache.commit(model, context, output.block, jnp.int32(n))


def assert_close(actual, expected, tolerance=1e-4):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance), actual, expected)


def layers_of(family: str) -> dict[str, jax.Array]:
    model, params = build(family, num_features=COMMON["num_hidden_layers"] + 1)
    output, _ = prefill(model, params, TOKENS, positions=positions_of(FAMILIES[family]))
    return {"hidden": output.hidden, "logits": output.logits}


def assert_same_bits(actual: Any, expected: Any) -> None:
    """The same tree of arrays, of the same types, bit by bit."""

    def same(a: Any, b: Any) -> None:
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()

    jax.tree.map(same, actual, expected)
