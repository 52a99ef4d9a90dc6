"""Lossless speculative decoding as compiled, pure JAX functions.

The parts are modules, loaded when they are first used: `decode` (methods and the loop), `tree`, `plan`, `profiles`,
`measure`, `verify`, `sampling`, `parity`, `pairs` (ready models), `networks`.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxspec import decode, measure, networks, pairs, parity, plan, profiles, sampling, tree, verify

__version__ = "0.1.0"
__all__ = [
    "decode",
    "measure",
    "networks",
    "pairs",
    "parity",
    "plan",
    "profiles",
    "sampling",
    "tree",
    "verify",
]


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"jaxspec.{name}")
    raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
