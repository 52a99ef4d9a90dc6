"""The program of a whole generation: its arguments, what it contains, and how many were compiled.

Compilations are counted in two ways: the cache sizes of the loop's jitted functions, and JAX's own event for each
backend compilation, which also sees the small programs of host code.
"""

import functools
from collections.abc import Iterator
from typing import Any

import checks
import jax
import jax.numpy as jnp
from compiled import num_programs
from toys import TableLM

from jaxspec import decode, tree
from jaxspec.decode import loop, stats
from jaxspec.decode.request import Asked, checked

VOCAB = 5003
"""Larger than any other axis, so that vocabulary-size work is told by its shape."""

COMPILATIONS: list[str] = []


def _listen(event: str, *_: object, **__: object) -> None:
    if event == "/jax/core/compile/backend_compile_duration":
        COMPILATIONS.append(event)


jax.monitoring.register_event_duration_secs_listener(_listen)


def cache_sizes() -> list[int]:
    return [num_programs(function) for function in (loop._start, loop._rounds, loop._round, loop.grow)]


def arguments(decoder, params, count=8, **options) -> tuple[Any, ...]:
    """What `_rounds` takes before the first round."""
    asked = Asked(**{"max_new_tokens": count, "logprobs": False, "first_capacity": 64, **options})
    state = loop.begin(decoder, params, checked(decoder, params, [[1, 2]], checks.KEY, asked))
    counts = jax.tree.map(lambda leaf: leaf[None], stats.zeros(decoder))
    return decoder, params, state, counts


def wide_vocabulary():
    """A pair of tables with a large vocabulary."""
    model = TableLM(VOCAB)
    params = {"table": jnp.zeros((VOCAB, VOCAB))}
    return decode.sequoia(model, model, tree.k_ary(2, 2)), {"target": params, "draft": params}


def program(decoder, params, **options):
    """The jaxpr of `_rounds`, within its jit."""
    _, *traced = arguments(decoder, params, **options)
    closed = jax.make_jaxpr(functools.partial(loop._rounds, decoder))(*traced)
    assert [equation.primitive.name for equation in closed.eqns] in (["jit"], ["pjit"])
    return closed.eqns[0].params["jaxpr"]


def equations(jaxpr) -> Iterator:
    """All equations of a jaxpr, those of its parts too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                yield from equations(inner) if hasattr(inner, "eqns") else ()


def vocabulary_work(jaxpr) -> set[str]:
    """The primitives that read or give an array of at least the vocabulary's size, parameters' look-ups aside."""
    return {
        equation.primitive.name
        for equation in equations(jaxpr)
        if any(VOCAB <= getattr(value.aval, "size", 0) < VOCAB**2 for value in (*equation.invars, *equation.outvars))
    }
