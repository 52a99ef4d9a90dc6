"""A GGUF file as it is: its metadata, and its tensors where they lie.

Every count and length is checked against the file before it is believed. The format: magic, version, how many tensors
and entries; entries (a name, a type, a value); tensors (a name, sizes from the last axis on, a type, an offset); then,
at a multiple of the alignment, the tensors' bytes. The `gguf` package knows the types and dequantises.
"""

import functools
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of entries, and what `struct` calls them."""

_STRING, _ARRAY = 8, 9

_VERSIONS = (2, 3)

_MOST_AXES = 4


class Stored(NamedTuple):
    """One tensor.

    Attributes:
        shape: `[out, in]` for a weight.
        kind: The type's number, of `gguf.GGMLQuantizationType`.
        start: Where it begins, in bytes of the file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int


class Gguf(NamedTuple):
    """A file's content.

    Attributes:
        fields: Values of the metadata by name: Python's numbers, strings, and lists of them.
        tensors: By name.
    """

    fields: dict[str, Any]
    tensors: dict[str, Stored]


def read(file: Path) -> Gguf:
    """What a GGUF file holds; kept for the last file, since the tokenizer is read from it as well.

    Raises:
        OSError: It can't be read.
        ValueError: It is no GGUF file, or not a whole one.
    """
    status = file.stat()
    return _read(file, status.st_mtime_ns, status.st_size)


def values(file: Path, name: str, tensor: Stored) -> np.ndarray:
    """A tensor of a file as floats, dequantised.

    Raises:
        ValueError: A type that the `gguf` package does not dequantise.
    """
    import gguf

    kind = gguf.GGMLQuantizationType(tensor.kind)
    with file.open("rb") as opened:
        opened.seek(tensor.start)
        data = np.frombuffer(opened.read(_num_bytes(file, name, tensor)), np.uint8)
    if kind == gguf.GGMLQuantizationType.F64:
        return data.view(np.float64).reshape(tensor.shape)
    try:
        return gguf.quants.dequantize(data.reshape(*tensor.shape[:-1], -1), kind).reshape(tensor.shape)
    except NotImplementedError:
        raise ValueError(
            f"{file}: {name} is of type {kind.name}, which the gguf package does not dequantise."
        ) from None


@functools.lru_cache(maxsize=1)
def _read(file: Path, modified: int, size: int) -> Gguf:
    cursor = _Cursor(file, file.read_bytes() if size < 1 << 16 else np.memmap(file, mode="r"))
    if cursor.take(4) != b"GGUF":
        raise ValueError(f"{file} is no GGUF file.")
    if (version := cursor.number("I")) not in _VERSIONS:
        raise ValueError(
            f"{file} is GGUF of version {version}; read are {_VERSIONS}, written by a little-endian machine."
        )
    num_tensors, num_fields = cursor.number("Q"), cursor.number("Q")
    fields: dict[str, Any] = {}
    for _ in range(num_fields):
        name = cursor.string()
        _once(file, name, fields)
        fields[name] = cursor.value(cursor.number("I"))
    tensors: dict[str, Stored] = {}
    for _ in range(num_tensors):
        name = cursor.string()
        _once(file, name, tensors)
        tensors[name] = cursor.tensor(name)
    alignment = fields.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"{file}: general.alignment={alignment!r} is no power of 2.")
    begin = -(-cursor.position // alignment) * alignment
    placed = {name: one._replace(start=begin + one.start) for name, one in tensors.items()}
    _check_places(file, placed, size)
    return Gguf(fields, placed)


def _once(file: Path, name: str, found: dict[str, Any]) -> None:
    if name in found:
        raise ValueError(f"{file} names {name} twice.")


def _num_bytes(file: Path, name: str, tensor: Stored) -> int:
    import gguf

    try:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(tensor.kind)]
    except (ValueError, KeyError):
        raise ValueError(
            f"{file}: {name} is of the type {tensor.kind}, which the gguf package does not know."
        ) from None
    if tensor.shape[-1] % block:
        raise ValueError(f"{file}: {name} has {tensor.shape[-1]} columns, its type makes blocks of {block}.")
    return math.prod(tensor.shape) // block * size


def _check_places(file: Path, tensors: dict[str, Stored], size: int) -> None:
    """Raises where a tensor is not all there, or stands in another's place."""
    position, before = 0, ""
    for name, tensor in sorted(tensors.items(), key=lambda one: one[1].start):
        if tensor.start < position:
            raise ValueError(f"{file}: {name} begins at byte {tensor.start}, but {before} ends at {position}.")
        position, before = tensor.start + _num_bytes(file, name, tensor), name
        if position > size:
            raise ValueError(f"{file}: the bytes of {name} are not all there: {position} of {size}.")


class _Cursor:
    """Reads a file's head from front to back.

    Args:
        file: What errors name.
        data: Its bytes.
    """

    def __init__(self, file: Path, data: Any) -> None:
        self.file, self.position = file, 0
        self._data = memoryview(data)

    def take(self, size: int) -> bytes:
        """The next bytes."""
        if size > len(self._data) - self.position:
            raise ValueError(f"{self.file} ends within its head: it is not whole.")
        self.position += size
        return bytes(self._data[self.position - size : self.position])

    def number(self, kind: str) -> Any:
        """The next number, of one of `struct`'s kinds."""
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))[0]

    def string(self) -> str:
        """The next string."""
        data = self.take(self.number("Q"))
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{self.file}: its metadata has the bytes {data[:40]!r}, which are not UTF-8.") from error

    def value(self, kind: int) -> Any:
        """The next value of an entry, of the type with this number."""
        if kind == _STRING:
            return self.string()
        if kind in _SCALARS:
            return self.number(_SCALARS[kind])
        if kind != _ARRAY:
            raise ValueError(f"{self.file}: its metadata has a value of the type {kind}, which GGUF does not have.")
        inner, count = self.number("I"), self.number("Q")
        if inner == _STRING:
            self._check_count(count, 8)
            return [self.string() for _ in range(count)]
        if inner not in _SCALARS:
            raise ValueError(f"{self.file}: its metadata has a list of the type {inner}, which is not read.")
        size = struct.calcsize(f"<{_SCALARS[inner]}")
        self._check_count(count, size)
        return list(struct.unpack(f"<{count}{_SCALARS[inner]}", self.take(count * size)))

    def tensor(self, name: str) -> Stored:
        """The next tensor, its start counted from the first one's."""
        if not 1 <= (axes := self.number("I")) <= _MOST_AXES:
            raise ValueError(f"{self.file}: {name} has {axes} axes; 1 to {_MOST_AXES} are read.")
        sizes = [self.number("Q") for _ in range(axes)]
        if not all(sizes):
            raise ValueError(f"{self.file}: {name} has the sizes {sizes}: none can be 0.")
        return Stored(tuple(reversed(sizes)), self.number("I"), self.number("Q"))

    def _check_count(self, count: int, size: int) -> None:
        if count * size > len(self._data) - self.position:
            raise ValueError(f"{self.file} ends within a list of {count} values: it is not whole.")
