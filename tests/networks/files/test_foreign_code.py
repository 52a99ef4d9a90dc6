"""Nothing that lies beside a model is run, and nobody is asked whether it should be."""

import builtins
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from commands import byte_tokenizer

from jaxspec import networks, pairs
from jaxspec.networks import Transformer, TransformerConfig

PLANTED = "from pathlib import Path\nPath({!r}).write_text('was run')\nclass Foreign:\n    pass\n"

MAPS = {
    "tokenizer_config.json": {"AutoTokenizer": ["foreign.Foreign", None]},
    "config.json": {"AutoConfig": "foreign.Foreign", "AutoModelForCausalLM": "foreign.Foreign"},
    "generation_config.json": {"AutoTokenizer": "elsewhere/repository--foreign.Foreign"},
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model with a python file beside it; whoever asks whether to run it fails."""
    model = Transformer(TransformerConfig(257, 16, 32, 2, 2, 1, 8))
    networks.save(tmp_path / "model", model, model.init(jax.random.key(0)))
    byte_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "foreign.py").write_text(PLANTED.format(str(tmp_path / "trace")))
    monkeypatch.setattr(builtins, "input", lambda *_: pytest.fail("something was asked"))
    return tmp_path / "model"


def plant(folder: Path, name: str, under: str | None) -> None:
    """Names the code in one of the folder's files, itself or below another key."""
    file = folder / name
    entries = json.loads(file.read_text()) if file.exists() else {}
    code = {"auto_map": MAPS[name]}
    file.write_text(json.dumps({**entries, **(code if under is None else {under: [code]})}))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("under", [None, "text_config"])
def test_code_of_a_model_is_refused_by_name_and_never_run(folder, name, under):
    plant(folder, name, under)
    for load in (networks.load, networks.load_tokenizer, lambda path: pairs.pair(path, path)):
        with pytest.raises(ValueError, match=rf"{name}: auto_map=.*foreign\.Foreign.*which jaxspec never does"):
            load(folder)
    assert not (folder.parent / "trace").exists()


def test_without_the_key_what_lies_there_does_not_matter(folder):
    assert len(networks.load_tokenizer(folder)) == 257
    plant(folder, "tokenizer_config.json", None)
    entries = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**entries, "auto_map": {}}))
    assert len(networks.load_tokenizer(folder)) == 257
    assert not (folder.parent / "trace").exists()


def test_a_token_may_have_the_name_of_the_key(folder):
    tokenizer = byte_tokenizer()
    tokenizer.add_tokens(["auto_map"])
    tokenizer.save_pretrained(folder)
    assert networks.load_tokenizer(folder).convert_tokens_to_ids("auto_map") == 257


@pytest.mark.parametrize(
    "template",
    [
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''.__class__.__base__.__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch ' ~ messages[0].content) }}",
        "{% set _ = messages.append(1) %}",
    ],
)
def test_a_chat_template_reaches_nothing(folder, template):
    byte_tokenizer().save_pretrained(folder)
    (folder / "chat_template.jinja").write_text(template)
    pair = pairs.pair(folder, folder)
    with pytest.raises(ValueError, match="chat template"):
        pair.encode(str(folder.parent / "trace"))
    assert not (folder.parent / "trace").exists()


def test_pickled_ids_are_not_unpickled(folder):
    class Trap:
        def __reduce__(self):
            return (Path.write_text, (folder.parent / "trace", "was run"))

    np.save(folder / "kept.npy", np.array([Trap()], object), allow_pickle=True)
    entries = {"target": ".", "draft": {"early_exit": 1}, "kept_ids": "kept.npy"}
    (folder / "pair.json").write_text(json.dumps(entries))
    with pytest.raises(ValueError, match=r"kept\.npy"):
        pairs.load(folder)
    assert not (folder.parent / "trace").exists()
