"""Tensors of a Hugging Face folder: safetensors, in one file or in several with an index.

Every source of weights is the same mapping from a tensor's checkpoint name to a function that reads it.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"


class Tensor(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        shape: As stored, `[out, in]` for a weight.
        read: Gives the array; the only time that its bytes are in host memory.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


def checkpoint_name(name: str) -> str:
    """A checkpoint's name of a tensor, from its dotted path in the parameters."""
    return name if name.startswith("lm_head.") else f"model.{name}"


_SAFETENSORS_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


def read_folder(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors of a Hugging Face folder."""
    if not (folder / CONFIG).exists():
        raise ValueError(f"{folder} has no {CONFIG}.")
    config = json.loads((folder / CONFIG).read_text())
    if (folder / WEIGHTS).exists():
        return config, read_safetensors(folder / WEIGHTS)
    if not (folder / INDEX).exists():
        raise ValueError(f"{folder} has neither {WEIGHTS} nor {INDEX}; other formats of weights are not read.")
    places: dict[str, str] = json.loads((folder / INDEX).read_text())["weight_map"]
    files = {file: read_safetensors(folder / Path(file).name) for file in sorted(set(places.values()))}
    lost = [name for name, file in places.items() if name not in files[file]]
    if lost:
        raise ValueError(f"{folder / INDEX} names tensors that its files lack: {', '.join(lost)}.")
    return config, {name: tensor for tensors in files.values() for name, tensor in tensors.items()}


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """The file's tensors, each read with its own seek: a memory map would count the whole file as memory in use.

    The format: 8 bytes length of the header, the header as JSON, the bytes that it points into.
    """
    if not file.exists():
        raise ValueError(f"{file} does not exist.")
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        if not 2 <= length <= file.stat().st_size - 8:
            raise ValueError(f"{file} is not a whole safetensors file.")
        header = json.loads(opened.read(length))

    def tensor(name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> Tensor:
        if dtype not in _SAFETENSORS_DTYPES:
            raise ValueError(f"{file}: {name} has dtype {dtype}; read are {', '.join(_SAFETENSORS_DTYPES)}.")
        start, end = data_offsets
        kind = _SAFETENSORS_DTYPES[dtype]
        if 8 + length + end > file.stat().st_size or (end - start) != kind.itemsize * int(np.prod(shape)):
            raise ValueError(f"{file}: the bytes of {name} are not all there.")

        def read() -> np.ndarray:
            return np.fromfile(file, kind, (end - start) // kind.itemsize, offset=8 + length + start).reshape(shape)

        return Tensor(tuple(shape), read)

    return {name: tensor(name, **entry) for name, entry in header.items() if name != "__metadata__"}
