"""GGUF files: their weights, and the tokenizers that they and folders hold."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from checkpoints import FAMILIES, assert_same_bits, build, random_checkpoint

from jaxspec.networks import from_hugging_face, load, load_tokenizer

_GGUF_NAMES = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def gguf_name(name: str) -> str:
    parts = name.removeprefix("model.").split(".")
    place = f"blk.{parts.pop(1)}." if parts[0] == "layers" else ""
    return place + _GGUF_NAMES[".".join(parts[1 if place else 0 : -1])] + "." + parts[-1]


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """GGUF's order of rows: the two halves of each head, row by row in turn."""
    heads = weight.reshape(num_heads, 2, -1, weight.shape[1])
    return np.concatenate([head[:, row] for head in heads for row in range(heads.shape[2])])


def gguf_writer(file: Path, config: dict[str, Any]) -> Any:
    writer = gguf.GGUFWriter(file, config["model_type"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config.get("rope_theta", 10000.0))
    if "head_dim" in config:
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
    return writer


def finish(writer: Any) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_gguf(file: Path, config: dict[str, Any], extra: dict[str, np.ndarray] | None = None) -> Path:
    writer = gguf_writer(file, config)
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    for name, tensor in random_checkpoint(config).items():
        kind = name.split(".")[-2]
        if config["model_type"] == "llama" and kind in heads:
            tensor = interleave(tensor, heads[kind])
        writer.add_tensor(gguf_name(name), tensor)
    for name, tensor in (extra or {}).items():
        writer.add_tensor(name, tensor)
    finish(writer)
    return file


@pytest.mark.parametrize("family", ["llama2", "smollm2", "qwen2", "qwen3"])
def test_a_gguf_file_gives_the_weights_that_were_written(tmp_path, family):
    model, params = load(write_gguf(tmp_path / "model.gguf", FAMILIES[family]))
    expected_model, expected = build(family)
    assert model.config == from_hugging_face({**FAMILIES[family], "rms_norm_eps": model.config.rms_norm_eps})
    assert model.config.rms_norm_eps == pytest.approx(expected_model.config.rms_norm_eps)
    assert_same_bits(params, expected)


def test_llama3_scaling_is_recognised_in_a_gguf_file(tmp_path):
    config = {**FAMILIES["llama3"], "rope_theta": 500000.0}
    config["rope_scaling"] = {**config["rope_scaling"], "factor": 32.0, "original_max_position_embeddings": 8192}
    divisors = []
    for pair in range(4):
        wavelength = 2 * np.pi * 500000.0 ** (pair / 4)
        smooth = min(max((8192 / wavelength - 1) / 3, 0), 1)
        divisors.append(1 / (smooth + (1 - smooth) / 32))
    divisors = np.array(divisors, np.float32)
    model, _ = load(write_gguf(tmp_path / "model.gguf", config, {"rope_freqs.weight": divisors}))
    assert model.config.rope_scaling == from_hugging_face(config).rope_scaling
    with pytest.raises(ValueError, match=r"rope_freqs.weight is not Llama 3's scaling"):
        load(write_gguf(tmp_path / "other.gguf", config, {"rope_freqs.weight": divisors * 2}))


def test_a_quantised_gguf_tensor_is_dequantised(tmp_path):
    config = FAMILIES["smollm2"]
    writer = gguf_writer(tmp_path / "model.gguf", config)
    checkpoint = random_checkpoint(config)
    for name, tensor in checkpoint.items():
        kind = name.split(".")[-2]
        if kind in ("q_proj", "k_proj"):
            tensor = interleave(tensor, {"q_proj": 4, "k_proj": 2}[kind])
        if tensor.shape[-1] == 32 and tensor.ndim == 2:
            packed = gguf.quants.quantize(tensor, gguf.GGMLQuantizationType.Q8_0)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
        else:
            writer.add_tensor(gguf_name(name), tensor.astype(np.float16))
    finish(writer)
    _, params = load(tmp_path / "model.gguf")
    query = params["layers"]["1"]["self_attn"]["q_proj"]["weight"]
    np.testing.assert_allclose(query, checkpoint["model.layers.1.self_attn.q_proj.weight"], atol=0.01)
    down = params["layers"]["0"]["mlp"]["down_proj"]["weight"]
    np.testing.assert_allclose(down, checkpoint["model.layers.0.mlp.down_proj.weight"], atol=1e-3)


def test_what_a_gguf_file_asks_for_beyond_the_implemented_is_named(tmp_path):
    config = FAMILIES["smollm2"]
    with pytest.raises(ValueError, match=r"unexpected tensors: .*blk.0.ffn_gate_exps.weight"):
        load(write_gguf(tmp_path / "a.gguf", config, {"blk.0.ffn_gate_exps.weight": np.zeros((2, 2), np.float32)}))
    with pytest.raises(ValueError, match="model_type='gemma'"):
        load(write_gguf(tmp_path / "b.gguf", {**config, "model_type": "gemma"}))
    writer = gguf_writer(tmp_path / "c.gguf", config)
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
    writer.add_tensor("token_embd.weight", np.zeros((61, 32), np.float32))
    finish(writer)
    with pytest.raises(ValueError, match=r"llama.rope.scaling.type='yarn'"):
        load(tmp_path / "c.gguf")


_WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from jaxspec.networks import load_tokenizer
tokenizer = load_tokenizer(sys.argv[1])
print(tokenizer("hello, hello<|end|>\\n")["input_ids"])
print(tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], return_dict=False))
print(tokenizer.eos_token_id, tokenizer.bos_token_id, tokenizer.decode([1, 258]))
"""


def write_tokenizer(file: Path) -> Path:
    """A GGUF file that holds a byte-level vocabulary with two merges and one special token, and no weights."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    tokens = ["<|end|>", "<|start|>", *bytes_to_unicode().values(), "he", "llo", "ll"]
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3, 3] + [1] * (len(tokens) - 2))
    writer.add_token_merges(["h e", "l l", "ll o"])
    writer.add_eos_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_add_bos_token(False)
    writer.add_chat_template("{% for message in messages %}<|start|>{{ message.content }}<|end|>{% endfor %}")
    finish(writer)
    return file


def test_a_gguf_tokenizer_needs_no_torch(tmp_path):
    file = write_tokenizer(tmp_path / "tokenizer.gguf")
    command = [sys.executable, "-c", _WITHOUT_TORCH, str(file)]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    tokenizer = load_tokenizer(file)
    he, llo = tokenizer.convert_tokens_to_ids(["he", "llo"])
    comma, space, line = tokenizer.convert_tokens_to_ids([",", "Ġ", "Ċ"])
    assert json.loads(printed[0]) == [he, llo, comma, space, he, llo, 0, line]
    assert json.loads(printed[1]) == [1, he, llo, 0]
    assert printed[2] == "0 1 <|start|>he"


def test_a_folder_tokenizer_is_the_same(tmp_path):
    tokenizer = load_tokenizer(write_tokenizer(tmp_path / "tokenizer.gguf"))
    tokenizer.save_pretrained(tmp_path / "folder")
    again = load_tokenizer(tmp_path / "folder")
    text = "hello, 1931 hello<|end|>"
    assert again(text)["input_ids"] == tokenizer(text)["input_ids"]
    assert (again.chat_template, again.eos_token) == (tokenizer.chat_template, "<|end|>")


def test_a_gguf_file_without_a_tokenizer_says_so(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(write_gguf(tmp_path / "model.gguf", FAMILIES["smollm2"]))
