"""From logits to draws: what a user asks for, the pipeline that every method uses, exact draws over a vocabulary.

Reads `base` alone; verification, decoding and training import it.
"""

from jaxspec.sampling.draws import FLOOR, NOTHING, argmax, distribution, draw, draw_without_replacement, top_k
from jaxspec.sampling.past import Past, Penalties, behind, behind_each, past_of
from jaxspec.sampling.pipeline import adjust, draft_logits, target_distribution, temper_draft
from jaxspec.sampling.settings import GREEDY, Options, Sampling, options

__all__ = [
    "FLOOR",
    "GREEDY",
    "NOTHING",
    "Options",
    "Past",
    "Penalties",
    "Sampling",
    "adjust",
    "argmax",
    "behind",
    "behind_each",
    "distribution",
    "draft_logits",
    "draw",
    "draw_without_replacement",
    "options",
    "past_of",
    "target_distribution",
    "temper_draft",
    "top_k",
]
