"""AdaEDL decoders of toy models, the paper's bound, and rounds with the threshold before each."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from checks import PROMPTS, steps
from toys import TableLM, pair

from jaxspec.decode.trees.adaptive import adaedl
from jaxspec.sampling import Sampling

MODEL = TableLM(3)
TARGET = np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.35, 0.5, 0.15]])
DRAFT = np.array([[0.15, 0.8, 0.05], [0.5, 0.4, 0.1], [0.3, 0.3, 0.4]])
"""Bounds of .65, .57 and .53: a threshold of .6 goes on after token 0 only, one of .55 after 0 and 1."""

BRISK = {"step": 0.15, "threshold_memory": 0.5, "acceptance_memory": 0.3, "target_acceptance": 0.6}
"""A threshold that moves by up to .075 a round, so that a few rounds cross the bounds."""

NEVER, ALWAYS = -math.inf, 1.5


def tables(target, draft):
    with np.errstate(divide="ignore"):
        return {
            name: {"table": jnp.asarray(np.log(probs), jnp.float32)}
            for name, probs in (("target", target), ("draft", draft))
        }


PARAMS = tables(TARGET, DRAFT)


def bound(probs, entropy_factor=0.2):
    """The paper's bound, in float64."""
    probs = np.asarray(probs, np.float64)
    positive = np.where(probs > 0, probs, 1.0)
    return 1 - np.sqrt(entropy_factor * -(probs * np.log(positive)).sum(axis=-1))


def of_pair(name, max_length=4, **options):
    return adaedl(pair(name).target, pair(name).draft, max_length, **options)


CTX = of_pair("ctx", threshold=0.46)
"""One decoder for most tests: its threshold is part of the state, so that other thresholds compile nothing."""
POS, TINY = of_pair("pos", threshold=0.6), of_pair("tiny", threshold=0.24)

MIXED = {"sampling": Sampling([0.0, 1.0, 0.0, 0.7]), "logprobs": False}


def logged(decoder, params, prompts=PROMPTS, count: Any = 20, threshold=None, **options):
    """Rounds by the step API: rows and memory before each, and its report; then the last state.

    Args:
        threshold: Replaces that of the first round.
    """
    memories = []

    def begin(state):
        if threshold is not None and not memories:
            value = jnp.full_like(state.memory.value, threshold)
            state = state._replace(memory=state.memory._replace(value=value))
        memories.append(jax.tree.map(np.array, state.memory))
        return state

    state, reports = steps(decoder, params, prompts, count, change=begin, **options)
    return [(row, memory, info) for (row, info), memory in zip(reports, memories, strict=True)], state


def new_tokens(state):
    row = state.row
    return [
        row.tokens[i, start:stop].tolist()
        for i, (start, stop) in enumerate(zip(row.prompt_length, row.num_tokens, strict=True))
    ]


def total(rounds, name):
    """`[B]` sums of a field of the reports."""
    return np.sum([getattr(info, name).astype(int) for _, _, info in rounds], axis=0)
