"""A safetensors file: its header, checked against the file, and the tensors that it points to.

The format: 8 bytes length of the header, the header as JSON, and the tensors' bytes, one behind the other.
"""

import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from jaxspec import documents

LARGEST_HEADER = 100 << 20
"""Bytes; the format's own limit."""

_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}


class Tensor(NamedTuple):
    """One tensor of a checkpoint.

    Attributes:
        shape: As stored, `[out, in]` for a weight.
        read: Gives the array; the only time that its bytes are in host memory.
    """

    shape: tuple[int, ...]
    read: Callable[[], np.ndarray]


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the header says of a tensor.

    Attributes:
        dtype: One of safetensors' names.
        shape: Its sizes.
        data_offsets: Where it begins and ends, in bytes behind the header.
    """

    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """The file's tensors, each read with its own seek: a memory map would count the whole file as memory in use.

    Raises:
        ValueError: No such file, or its header is not one, or says other than what the file has.
    """
    if not file.is_file():
        raise ValueError(f"{file} does not exist.")
    with file.open("rb") as opened:
        length, size = int.from_bytes(opened.read(8), "little"), file.stat().st_size
        if not 2 <= length <= min(size - 8, LARGEST_HEADER):
            raise ValueError(f"{file} is not a whole safetensors file.")
        header = documents.parse(
            documents.decoded(opened.read(length), f"the header of {file}"), f"the header of {file}"
        )
    if isinstance(header, dict):
        header.pop("__metadata__", None)
    entries = documents.checked(dict[str, Entry], header, f"the header of {file}")
    for name, entry in entries.items():
        if min(*entry.shape, *entry.data_offsets) < 0:
            raise ValueError(
                f"{file}: {name} has shape {list(entry.shape)} and offsets {entry.data_offsets}: negative."
            )
        if entry.dtype not in _DTYPES:
            raise ValueError(f"{file}: {name} has dtype {entry.dtype}; read are {', '.join(_DTYPES)}.")
    _check_places(file, entries, size - 8 - length)
    return {name: _tensor(file, entry, 8 + length) for name, entry in entries.items()}


def _check_places(file: Path, entries: dict[str, Entry], size: int) -> None:
    """Raises where the tensors do not stand one behind the other, each as long as its shape makes it."""
    position = 0
    for name, entry in sorted(entries.items(), key=lambda one: one[1].data_offsets):
        start, end = entry.data_offsets
        needed = math.prod(entry.shape) * _DTYPES[entry.dtype].itemsize
        if end > size:
            raise ValueError(f"{file}: the bytes of {name} are not all there: {end} of {size}.")
        if end - start != needed:
            raise ValueError(
                f"{file}: {name} has {end - start} bytes, its shape {list(entry.shape)} makes it {needed}."
            )
        if start != position:
            raise ValueError(f"{file}: {name} begins at byte {start}, but the tensor before it ends at {position}.")
        position = end
    if position != size:
        raise ValueError(f"{file}: its tensors have {position} bytes, but {size} are there.")


def _tensor(file: Path, entry: Entry, start: int) -> Tensor:
    kind = _DTYPES[entry.dtype]

    def read() -> np.ndarray:
        count = math.prod(entry.shape)
        found = np.fromfile(file, kind, count, offset=start + entry.data_offsets[0])
        if len(found) != count:
            raise ValueError(f"{file} became shorter while it was read.")
        return found.reshape(entry.shape)

    return Tensor(entry.shape, read)
