"""The peers that the library is compared with."""

import importlib.util
import json
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import gguf
import jax
import numpy as np
import peers
import pytest
from commands import byte_tokenizer, save_model
from timed import samples

from jaxspec import decode, pairs
from jaxspec.study import bench
from jaxspec.study.bench_results import BASELINE, Report

LIMIT = 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    save_model(folder / "target", 0, byte_tokenizer())
    (folder / "pair.json").write_text(json.dumps({"target": "target", "draft": {"early_exit": 1}}))
    lines = [("a", "writing"), ("b", "qa"), ("c", "qa"), ("d", "math")]
    text = "".join(json.dumps({"prompt": prompt, "category": category}) + "\n" for prompt, category in lines)
    (folder / "prompts.jsonl").write_text(text)
    return folder


def test_ours_is_compared_with_its_counterpart():
    timed = {BASELINE: samples([[2.0]]), "sequoia": samples([[1.0]])}
    theirs = {"torch": samples([[4.0]]), "torch assisted 5": samples([[3.0]]), "llama.cpp float32": samples([[1.0]])}
    report = Report(timed | theirs, ["qa"], {})
    wanted = {f"{BASELINE} / torch": 2, f"{BASELINE} / llama.cpp float32": 0.5, "sequoia / torch assisted 5": 3}
    found = {name: one.median for name, one in peers.ratios(report, list(timed)).items()}
    assert found == pytest.approx(wanted)


@pytest.fixture
def peer_arguments(folder):
    words = ["--prompts", folder / "prompts.jsonl", "--assistant-tokens", "3", "--max-new-tokens", LIMIT]
    return peers.parse([str(word) for word in words])


@pytest.mark.filterwarnings("ignore")
def test_torch_peers_give_our_texts(folder, peer_arguments, tmp_path):
    pytest.importorskip("torch")
    loaded = pairs.load(folder)
    prompt = loaded.encode("abcabc")
    plain = decode.autoregressive(loaded.target)
    wanted = bench.decoder_arm(plain, loaded.params, jax.random.key(0), LIMIT).generate(0, prompt).tokens.tolist()
    found = dict(peers.torch_peers(loaded, peer_arguments, tmp_path))
    assert list(found) == ["torch", "torch lookup", "torch assisted 3"]
    assert {name: peer.arm.generate(0, prompt).tokens.tolist() for name, peer in found.items()} == dict.fromkeys(
        found, wanted
    )
    assert found["torch assisted 3"].config.items() >= peers.assistant_settings("3").items()
    assert found["torch lookup"].config["prompt_lookup_num_tokens"] == 10


def write_gguf(path):
    """A GGUF file with a quantised tensor, a text and a list; returns the tensor as it is read."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_token_list(["a", "b"])
    packed = gguf.quants.quantize(np.arange(64, dtype=np.float32).reshape(2, 32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return gguf.quants.dequantize(packed, gguf.GGMLQuantizationType.Q8_0)


def test_a_gguf_file_in_float32(tmp_path):
    wanted = write_gguf(tmp_path / "source.gguf")
    peers.float32_gguf(tmp_path / "source.gguf", tmp_path / "wide.gguf")
    wide = gguf.GGUFReader(tmp_path / "wide.gguf")
    assert [(tensor.name, tensor.tensor_type.name) for tensor in wide.tensors] == [("token_embd.weight", "F32")]
    assert np.array_equal(wide.tensors[0].data, wanted)
    assert wide.fields["general.name"].contents() == "tiny"
    assert wide.fields["tokenizer.ggml.tokens"].contents() == ["a", "b"]


def test_llama_starts_each_prompt_anew(peer_arguments, tmp_path, monkeypatch):
    """On a stand-in: llama-cpp-python itself is seldom installed."""
    made = []

    class Llama:
        def __init__(self, path, **settings):
            self.calls = []
            made.append((Path(path).name, settings))

        def reset(self):
            self.calls.append("reset")

        def generate(self, tokens, **options):
            assert self.calls.pop() == "reset"
            assert options == {"temp": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
            while True:
                yield tokens[0]

    module = types.ModuleType("llama_cpp")
    module.__spec__ = ModuleSpec("llama_cpp", None)
    vars(module).update(Llama=Llama, GGML_TYPE_F32=0)
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    write_gguf(tmp_path / "source.gguf")
    loaded: Any = types.SimpleNamespace(sources={"target": str(tmp_path / "source.gguf")})
    found = dict(peers.llama_peers(loaded, peer_arguments, tmp_path))
    assert list(found) == ["llama.cpp as quantised", "llama.cpp float32"]
    assert [name for name, _ in made] == ["source.gguf", "source.float32.gguf"]
    assert [settings.get("type_k") for _, settings in made] == [None, 0]
    for peer in found.values():
        for _ in range(2):
            assert peer.arm.generate(0, [7, 8]).tokens.tolist() == [7] * LIMIT


def test_a_peer_that_is_not_installed_is_named(folder, peer_arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wanted = {"transformers": "torch is not installed", "llama.cpp": "llama-cpp-python is not installed"}
    assert peers.available(pairs.load(folder), peer_arguments, tmp_path) == ({}, wanted)
