"""Checkpoints in folders are loaded, saved, and refused by tensor; how much memory that takes."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from checkpoints import FAMILIES, TOKENS, assert_same_bits, build, prefill, random_checkpoint
from safetensors.numpy import save_file

from jaxspec.networks import load, save


def write_folder(folder: Path, config: dict[str, Any], checkpoint: dict[str, np.ndarray]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(checkpoint, folder / "model.safetensors")
    return folder


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
