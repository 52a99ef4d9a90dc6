"""Lossless speculative decoding as compiled, pure JAX functions.

Each part is a room of its own, loaded when it is first used; imports run downwards in this order:

    cli                              the command line
    server                           OpenAI's interface, by the extra `serve`
    study  train  catalogue          comparisons; what is fitted; methods and prompts by name
    measure  pairs                   a pair on this machine; ready pairs
    plan  decode  networks           what to decode with; methods and their loop; models
    verify  sampling  cache  tree    rules; draws; committed tokens; trees
    profiles  records                what was measured; JSON written
    documents  base                  files that people write, read; letters and the `Model` protocol
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxspec import decode, measure, networks, pairs, plan, profiles, sampling, tree, verify
    from jaxspec.catalogue import ranking
    from jaxspec.decode.branches import cuts as hrad
    from jaxspec.plan import theory
    from jaxspec.study import parity
    from jaxspec.study import simulation as simulate
    from jaxspec.train import distil as training

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
    "training",
    "tree",
    "verify",
]

_ELSEWHERE = {
    "hrad": "decode.branches.cuts",
    "parity": "study.parity",
    "ranking": "catalogue.ranking",
    "simulate": "study.simulation",
    "theory": "plan.theory",
    "training": "train.distil",
}
"""Modules that are offered here and live in a room."""


def __getattr__(name: str) -> ModuleType:
    if name in __all__:
        return importlib.import_module(f"jaxspec.{_ELSEWHERE.get(name, name)}")
    raise AttributeError(f"module 'jaxspec' has no attribute {name!r}")
