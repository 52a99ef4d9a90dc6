"""Configs read and refused by name; checkpoints loaded, saved, and refused by tensor."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gguf
import jax
import ml_dtypes
import numpy as np
import pytest
from checkpoints import FAMILIES, TOKENS, build, prefill, random_checkpoint
from safetensors.numpy import save_file
from transformers import AutoConfig

from jaxspec.networks import Llama3RopeScaling, from_hugging_face, load, load_tokenizer, save, to_hugging_face

# ---- configs ----


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
        ("llama2", "model_type", "mamba", "model_type='mamba'.*llama, qwen2, qwen3"),
        ("llama2", "hidden_act", "gelu", "hidden_act='gelu'.*'silu'"),
        ("llama2", "pretraining_tp", 2, "pretraining_tp=2"),
        ("llama2", "sliding_window", 4096, "sliding_window=4096"),
        ("llama2", "partial_rotary_factor", 0.5, "partial_rotary_factor=0.5"),
        ("llama2", "rope_scaling", {"type": "linear", "factor": 2.0}, "rope_type='linear'.*'llama3'"),
        ("llama2", "rope_scaling", {"rope_type": "dynamic", "factor": 2.0}, "rope_type='dynamic'"),
        ("llama2", "rope_parameters", {"rope_type": "yarn", "factor": 2.0}, "rope_type='yarn'"),
        ("llama2", "rope_parameters", {"rope_type": "longrope"}, "rope_type='longrope'"),
        ("llama2", "rope_parameters", {"partial_rotary_factor": 0.25}, "partial_rotary_factor=0.25"),
        ("llama2", "rope_parameters", {"rope_type": "default", "factor": 2.0}, "factor=2.0"),
        ("llama2", "rope_scaling", {"rope_type": "llama3", "factor": 8.0}, "lacks low_freq_factor, high_freq_factor"),
        ("llama2", "quantization_config", {"bits": 4}, "quantization_config="),
        ("llama2", "num_local_experts", 8, "num_local_experts=8"),
        ("llama2", "logit_scale", 0.1, "logit_scale=0.1"),
        ("llama2", "num_key_value_heads", 3, "num_heads=4.*num_kv_heads=3"),
        ("llama2", "head_dim", 7, "head_dim=7"),
        ("llama2", "vocab_size", None, "lacks vocab_size"),
        ("llama2", "num_hidden_layers", 0, "num_layers=0"),
        ("qwen2", "use_sliding_window", True, "use_sliding_window=True"),
        ("qwen2", "layer_types", ["full_attention", "sliding_attention"], "sliding_attention"),
        ("qwen2", "attention_bias", True, "attention_bias=True"),
        ("qwen3", "mlp_bias", True, "mlp_bias=True"),
    ],
)
def test_what_would_change_the_mathematics_is_refused_by_name(family, key, value, named):
    with pytest.raises(ValueError, match=named):
        from_hugging_face({**FAMILIES[family], key: value})


def test_bookkeeping_is_harmless():
    extra = {"torch_dtype": "bfloat16", "eos_token_id": [1, 2], "attention_dropout": 0.1, "use_cache": False}
    sliding = {"sliding_window": 4096, "max_window_layers": 28, "layer_types": ["full_attention"] * 2}
    assert from_hugging_face({**FAMILIES["qwen2"], **extra, **sliding}) == from_hugging_face(FAMILIES["qwen2"])


# ---- folders ----


def write_folder(folder: Path, config: dict[str, Any], checkpoint: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(checkpoint, folder / "model.safetensors")
    return folder


def assert_same_bits(actual: Any, expected: Any) -> None:
    def same(a: Any, b: Any) -> None:
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()

    jax.tree.map(same, actual, expected)


@pytest.mark.parametrize("scan_layers", [False, True])
def test_a_folder_gives_its_weights_bit_by_bit(tmp_path, scan_layers):
    folder = write_folder(tmp_path, FAMILIES["qwen3"], random_checkpoint(FAMILIES["qwen3"]))
    model, params = load(folder, scan_layers=scan_layers, num_features=1)
    expected_model, expected = build("qwen3", scan_layers=scan_layers, num_features=1)
    assert model == expected_model
    assert_same_bits(params, expected)


@pytest.mark.parametrize("family", FAMILIES)
def test_save_then_load(tmp_path, family):
    model, params = build(family)
    save(tmp_path / "new" / "folder", model, params)
    again, loaded = load(tmp_path / "new" / "folder")
    assert again == model
    assert_same_bits(loaded, params)


def test_saving_scanned_layers_takes_them_apart(tmp_path):
    model, params = build(scan_layers=True)
    save(tmp_path, model, params)
    assert_same_bits(load(tmp_path)[1], build()[1])


@pytest.mark.parametrize("family", ["llama3", "qwen2", "qwen3"])
def test_transformers_reads_what_we_save(tmp_path, family):
    torch = pytest.importorskip("torch")
    from transformers import AutoModelForCausalLM

    model, params = build(family)
    save(tmp_path, model, params)
    network = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        logits = network(torch.tensor(TOKENS[None], dtype=torch.long)).logits[0].numpy()
    np.testing.assert_allclose(prefill(model, params, TOKENS)[0].logits, logits, atol=1e-4)


def test_bfloat16_is_read_bit_by_bit_and_widened_exactly(tmp_path):
    checkpoint = {
        name: tensor.astype(ml_dtypes.bfloat16) for name, tensor in random_checkpoint(FAMILIES["smollm2"]).items()
    }
    folder = write_folder(tmp_path, FAMILIES["smollm2"], checkpoint)
    key = checkpoint["model.layers.1.self_attn.k_proj.weight"]
    for dtype in ("bfloat16", "float32"):
        model, params = load(folder, dtype=dtype)
        loaded = np.asarray(params["layers"]["1"]["self_attn"]["k_proj"]["weight"])
        assert model.dtype == loaded.dtype.name == dtype
        assert loaded.tobytes() == key.astype(dtype).tobytes()
    save(folder / "again", *load(folder, dtype="bfloat16"))
    assert_same_bits(load(folder / "again", dtype="bfloat16")[1], load(folder, dtype="bfloat16")[1])


def test_a_sharded_folder_gives_the_same(tmp_path):
    checkpoint = random_checkpoint(FAMILIES["smollm2"])
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES["smollm2"]))
    places = {name: f"model-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(checkpoint)}
    for file in set(places.values()):
        save_file({name: tensor for name, tensor in checkpoint.items() if places[name] == file}, tmp_path / file)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    assert_same_bits(load(tmp_path)[1], build("smollm2")[1])
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00002.safetensors does not exist"):
        load(tmp_path)


def test_missing_unexpected_and_misshapen_tensors_are_named(tmp_path):
    config, name = FAMILIES["llama2"], "model.layers.1.mlp.up_proj.weight"

    def load_changed(change: dict[str, Any]) -> Any:
        checkpoint = {**random_checkpoint(config), **change}
        return load(
            write_folder(tmp_path, config, {key: value for key, value in checkpoint.items() if value is not None})
        )

    with pytest.raises(ValueError, match=f"lacks tensors: {name}"):
        load_changed({name: None})
    with pytest.raises(ValueError, match=r"lacks tensors: lm_head.weight"):
        load_changed({"lm_head.weight": None})
    with pytest.raises(ValueError, match=r"unexpected tensors: model.layers.2.mlp.up_proj.weight"):
        load_changed({"model.layers.2.mlp.up_proj.weight": np.zeros((40, 32), np.float32)})
    with pytest.raises(ValueError, match=rf"{name} is \(32, 40\), the config makes it \(40, 32\)"):
        load_changed({name: np.zeros((32, 40), np.float32)})
    with pytest.raises(ValueError, match=r"up_proj.weight has dtype I32"):
        load_changed({name: np.zeros((40, 32), np.int32)})
    load_changed({"model.layers.0.self_attn.rotary_emb.inv_freq": np.zeros(4, np.float32)})


def test_a_tied_head_may_be_stored_only_if_it_equals_the_embedding(tmp_path):
    checkpoint = random_checkpoint(FAMILIES["smollm2"])
    checkpoint["lm_head.weight"] = checkpoint["model.embed_tokens.weight"].copy()
    assert_same_bits(load(write_folder(tmp_path, FAMILIES["smollm2"], checkpoint))[1], build("smollm2")[1])
    checkpoint["lm_head.weight"][3, 3] += 1
    with pytest.raises(ValueError, match=r"lm_head.weight differs from the embedding"):
        load(write_folder(tmp_path, FAMILIES["smollm2"], checkpoint))


def test_what_is_no_checkpoint_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"has no config.json"):
        load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(FAMILIES["llama2"]))
    with pytest.raises(ValueError, match=r"neither model.safetensors nor"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(ValueError, match="not a whole safetensors file"):
        load(tmp_path)
    write_folder(tmp_path, FAMILIES["llama2"], random_checkpoint(FAMILIES["llama2"]))
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-4])
    with pytest.raises(ValueError, match="are not all there"):
        load(tmp_path)
    for name in (tmp_path / "absent.gguf", "absent", "./a/b"):
        with pytest.raises(ValueError, match="no hub id"):
            load(name)
    with pytest.raises(ValueError, match="neither a folder nor"):
        load(tmp_path / "config.json")
    with pytest.raises(ValueError, match="dtype='int8'"):
        load(write_folder(tmp_path, FAMILIES["llama2"], random_checkpoint(FAMILIES["llama2"])), dtype="int8")


def test_a_hub_id_is_taken_from_the_cache_or_says_what_failed(tmp_path, monkeypatch):
    import huggingface_hub

    folder = write_folder(tmp_path, FAMILIES["smollm2"], random_checkpoint(FAMILIES["smollm2"]))
    asked = []

    def cached(name: str, local_files_only: bool = False, **_: Any) -> str:
        asked.append((name, local_files_only))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", cached)
    assert_same_bits(load("organisation/name")[1], build("smollm2")[1])
    assert asked == [("organisation/name", True)]

    def offline(name: str, local_files_only: bool = False, **_: Any) -> str:
        raise huggingface_hub.errors.LocalEntryNotFoundError("nothing") if local_files_only else OSError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ValueError, match=r"'organisation/name' is not a folder here.*no network"):
        load("organisation/name")


# The kernel's high-water mark of this program alone: ru_maxrss would begin with the parent's.
_PEAK = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp
from jaxspec.networks import load

def peak():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

jax.block_until_ready(jnp.zeros(4) + 1)
before = peak()
model, params = load(sys.argv[1], scan_layers=sys.argv[2] == "scanned")
print((peak() - before) / sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
"""


@pytest.fixture(scope="module")
def large_folder(tmp_path_factory):
    """A checkpoint of 200 MB."""
    sizes = {"vocab_size": 16384, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 11}
    config = {**FAMILIES["smollm2"], **sizes}
    folder = write_folder(tmp_path_factory.mktemp("large"), config, random_checkpoint(config))
    assert (folder / "model.safetensors").stat().st_size > 190e6
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("layers", ["unrolled", "scanned"])
def test_peak_memory_stays_below_1_3_of_the_weights(large_folder, layers):
    command = [sys.executable, "-c", _PEAK, str(large_folder), layers]
    ratio = float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert 0.9 < ratio < 1.3


# ---- GGUF ----

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


# ---- tokenizers ----

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
