"""Config and tensors of a Hugging Face folder: safetensors, in one file or in several with an index.

Every source of weights is the same mapping from a tensor's checkpoint name to a function that reads it.
"""

import dataclasses
from pathlib import Path
from typing import Any

from jaxspec import documents
from jaxspec.networks.files.safetensors_file import Tensor, read_safetensors
from jaxspec.networks.files.tokenizer import refuse_code

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


@dataclasses.dataclass(frozen=True)
class Index:
    """What is read of an index: the file, in the same folder, of each tensor."""

    weight_map: dict[str, str]


def checkpoint_name(name: str) -> str:
    """A checkpoint's name of a tensor, from its dotted path in the parameters."""
    return name if name.startswith("lm_head.") else f"model.{name}"


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a Hugging Face folder.

    Raises:
        ValueError: A file is missing, damaged, or asks for code of its own.
    """
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} has no {CONFIG}.")
    refuse_code(folder)
    config = documents.read(folder / CONFIG)
    if not isinstance(config, dict):
        raise ValueError(f"{folder / CONFIG} is {documents.shown(config)}, but a JSON object is needed.")
    if (folder / WEIGHTS).exists():
        return config, read_safetensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {INDEX}; other formats of weights are not read.")
    places = documents.checked(Index, documents.read(folder / INDEX), str(folder / INDEX)).weight_map
    files = {file: read_safetensors(folder / Path(file).name) for file in sorted(set(places.values()))}
    lost = [name for name, file in places.items() if name not in files[file]]
    if lost:
        raise ValueError(f"{folder / INDEX} names tensors that its files lack: {', '.join(lost)}.")
    stored = {name: tensor for tensors in files.values() for name, tensor in tensors.items()}
    return config, stored | {name: files[file][name] for name, file in places.items()}
