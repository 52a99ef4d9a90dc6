"""Lossless speculative decoding as compiled, pure JAX functions.

The parts are modules, loaded when they are first used: `decode` (methods and the loop), `tree`, `plan`, `profiles`,
`measure`, `verify`, `sampling`, `parity`, `pairs` (ready models), `networks`, `hrad`, `theory`, `ranking`, `simulate`.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxspec import (
        decode,
        hrad,
        measure,
        networks,
        pairs,
        parity,
        plan,
        profiles,
        ranking,
        sampling,
        simulate,
        theory,
        tree,
        verify,
    )

__version__ = "0.1.0"
__all__ = [
    "decode",
    "hrad",
    "measure",
    "networks",
    "pairs",
    "parity",
    "plan",
    "profiles",
    "ranking",
    "sampling",
    "simulate",
    "theory",
    "tree",
    "verify",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"jaxspec.{name}")
    raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
