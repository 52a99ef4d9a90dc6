"""A trained H-RAD head in a folder: `hrad.safetensors`, `hrad.json` (what it is and how it was made), a `README.md`."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxspec.base import Params
from jaxspec.networks import MLP, mlp

WEIGHTS, RECORD, CARD = "hrad.safetensors", "hrad.json", "README.md"


@dataclasses.dataclass(frozen=True, eq=False)
class Head:
    """A head; its parameters are read when they are first asked for.

    Attributes:
        folder: Where it lies.
        network: What `decode.specbranch` takes.
        temperature: Of the target, in the rounds that it was trained on.
        length: G there.
        epsilon: The confidence below which its class partial cuts best.
        record: All that `hrad.json` holds.
    """

    folder: Path
    network: MLP
    temperature: float
    length: int
    epsilon: float
    record: Mapping[str, Any] = dataclasses.field(repr=False)

    @functools.cached_property
    def params(self) -> Params:
        """What decoders need as `params["hrad"]`."""
        return mlp.load_params(self.folder / WEIGHTS, self.network)


def load(folder: str | os.PathLike[str]) -> Head:
    """The head in a folder.

    Raises:
        ValueError: It has no head, or one without the numbers that say what it is for.
    """
    folder = Path(folder)
    network, record = mlp.read_record(folder / WEIGHTS)
    try:
        numbers = float(record["temperature"]), int(record["length"]), float(record["epsilon"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / WEIGHTS}: its .json needs temperature, length and epsilon ({error}).") from error
    if not (folder / WEIGHTS).is_file():
        raise ValueError(f"{folder} has no {WEIGHTS}.")
    return Head(folder, network, *numbers, record)


def save(folder: Path, network: MLP, params: Params, record: Mapping[str, Any], card: str) -> None:
    """Writes a head's folder, made where it does not exist.

    Args:
        folder: The folder.
        network: The network.
        params: Its parameters.
        record: As JSON has it; `temperature`, `length` and `epsilon` among it.
        card: The text of `README.md`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    mlp.save(folder / WEIGHTS, network, params, record)
    (folder / CARD).write_text(card, encoding="utf-8")
