"""A ready pair: target, draft, tokenizer, profiles and heads, by name, from a folder, or from two models.

Reads `networks` and `profiles`; the catalogue, studies and the command line import it. What needs JAX is imported when
it is first used, so that a command's `--help` is quick.
"""

import importlib
from typing import TYPE_CHECKING, Any

from jaxspec.pairs.fetching import DEFAULT, Unavailable, fetch

if TYPE_CHECKING:
    from jaxspec.networks import Trimmed, early_exit, early_exit_params
    from jaxspec.pairs.loading import PAIRS, Pair, load, pair

__all__ = [
    "DEFAULT",
    "PAIRS",
    "Pair",
    "Trimmed",
    "Unavailable",
    "early_exit",
    "early_exit_params",
    "fetch",
    "load",
    "pair",
]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("jaxspec.pairs.loading"), name)
    raise AttributeError(f"module 'jaxspec.pairs' has no attribute {name!r}")
