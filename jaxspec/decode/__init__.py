"""Decoding methods, each a frozen dataclass with `init` and `round`, and the loop that runs them.

Reads `verify`, `sampling`, `cache` and `tree`, never a network; measurement and all above import it.
"""

from jaxspec.decode.branches.decoder import pearl, specbranch
from jaxspec.decode.loop import PADDING, Chunk, Generation, first_state, generate, stream
from jaxspec.decode.plain import autoregressive
from jaxspec.decode.state import Decoder, Info, Row, State
from jaxspec.decode.stats import Counts, Stats
from jaxspec.decode.trees.adaptive import adaedl
from jaxspec.decode.trees.static import sequoia, speculative, topk
from jaxspec.sampling import Sampling

__all__ = [
    "PADDING",
    "Chunk",
    "Counts",
    "Decoder",
    "Generation",
    "Info",
    "Row",
    "Sampling",
    "State",
    "Stats",
    "adaedl",
    "autoregressive",
    "first_state",
    "generate",
    "pearl",
    "sequoia",
    "specbranch",
    "speculative",
    "stream",
    "topk",
]
