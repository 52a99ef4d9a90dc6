"""Configs are read, written, and refused by name."""

import pytest
from checkpoints import FAMILIES
from transformers import AutoConfig

from jaxspec.networks import Llama3RopeScaling, from_hugging_face, to_hugging_face


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_survives_the_way_to_hugging_face_and_back(family):
    config = from_hugging_face(FAMILIES[family])
    assert from_hugging_face(to_hugging_face(config)) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_our_config_and_we_read_its(family):
    config = from_hugging_face(FAMILIES[family])
    written = to_hugging_face(config)
    theirs = AutoConfig.for_model(**written)
    assert from_hugging_face(theirs.to_dict()) == config
    assert from_hugging_face(theirs.to_diff_dict() | {"model_type": written["model_type"]}) == config


def test_both_forms_of_rope_mean_the_same():
    old = FAMILIES["llama3"]
    new = {key: value for key, value in old.items() if not key.startswith("rope_")}
    new["rope_parameters"] = {"rope_theta": 500.0, **old["rope_scaling"]}
    assert from_hugging_face(new) == from_hugging_face(old)
    assert from_hugging_face(old).rope_scaling == Llama3RopeScaling(8.0, 1.0, 4.0, 256)


@pytest.mark.parametrize(
    ("family", "key", "value", "named"),
    [
        ("llama2", "model_type", "mamba", "model_type='mamba'.*llama, qwen2, qwen3, mistral"),
        ("llama2", "hidden_act", "gelu", "hidden_act='gelu'.*'silu'"),
        ("llama2", "pretraining_tp", 2, "pretraining_tp=2"),
        ("llama2", "sliding_window", 4096, "sliding_window=4096"),
        ("llama2", "partial_rotary_factor", 1.5, "partial_rotary_factor=1.5"),
        ("llama2", "rope_theta", -1.0, "rope_theta=-1.0"),
        ("llama2", "rope_scaling", {"type": "linear"}, "'linear' lacks factor"),
        ("llama2", "rope_scaling", {"type": "linear", "factor": "2"}, "factor='2'"),
        ("llama2", "rope_scaling", {"rope_type": "mrope", "mrope_section": [1]}, "rope_type='mrope'.*'longrope'"),
        ("llama2", "rope_parameters", {"rope_type": "longrope"}, "'longrope' needs short_factor"),
        ("llama2", "use_mrope", True, "use_mrope=True"),
        ("llama2", "rope_parameters", {"rope_type": "default", "factor": 2.0}, "factor=2.0"),
        ("llama2", "rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "lacks low_freq_factor, high_freq_factor"),
        ("llama2", "quantization_config", {"bits": 4}, "quantization_config="),
        ("llama2", "num_local_experts", 8, "num_local_experts=8"),
        ("llama2", "logit_scale", 0.1, "logit_scale=0.1"),
        ("llama2", "num_key_value_heads", 3, "num_heads=4.*num_kv_heads=3"),
        ("llama2", "head_dim", 7, "head_dim=7"),
        ("llama2", "vocab_size", None, "lacks vocab_size"),
        ("llama2", "num_hidden_layers", 0, "num_layers=0"),
        ("llama2", "layer_types", ["full_attention", "sliding_attention"], "sliding_attention"),
        ("llama2", "hidden_size", "32", "hidden_size='32' is not a whole number"),
        ("mistral", "sliding_window", 0, "sliding_window=0"),
        ("gemma3", "layer_types", ["full_attention", "chunked_attention"], "chunked_attention"),
        ("gemma3", "use_bidirectional_attention", True, "use_bidirectional_attention=True"),
        ("gemma3", "attn_logit_softcapping", 5.0, "attn_logit_softcapping=5.0"),
        ("gemma3", "rope_parameters", {"sliding_attention": {"type": "linear", "factor": 2.0}}, "with a window"),
        ("smollm3", "no_rope_layers", [1], "no_rope_layers="),
        ("qwen2", "attention_bias", True, "attention_bias=True"),
        ("qwen3", "mlp_bias", True, "mlp_bias=True"),
    ],
)
def test_what_would_change_the_mathematics_is_refused_by_name(family, key, value, named):
    with pytest.raises(ValueError, match=named):
        from_hugging_face({**FAMILIES[family], key: value})


def test_keys_that_say_nothing_are_accepted():
    neutral = {
        "use_mrope": False,
        "temperature": 0.7,
        "do_sample": True,
        "rope_scaling": {"type": "linear", "factor": 1},
    }
    assert from_hugging_face({**FAMILIES["qwen2"], **neutral}) == from_hugging_face(FAMILIES["qwen2"])


def test_bookkeeping_is_harmless():
    extra = {"torch_dtype": "bfloat16", "eos_token_id": [1, 2], "attention_dropout": 0.1, "use_cache": False}
    sliding = {"sliding_window": 4096, "max_window_layers": 28, "layer_types": ["full_attention"] * 2}
    assert from_hugging_face({**FAMILIES["qwen2"], **extra, **sliding}) == from_hugging_face(FAMILIES["qwen2"])
