"""What a compiled program says of itself, and how many of them a jitted function has."""

from typing import Any

from compiling import USERS
from jax.stages import Compiled, Lowered


def for_users(lowered: Lowered) -> Compiled:
    """The program as users get it, whatever the tests' other programs are compiled with."""
    return lowered.compile(compiler_options=dict(USERS))


def text_of(compiled: Compiled) -> str:
    """The optimised program as text."""
    text = compiled.as_text()
    assert text is not None
    return text


def memory_of(compiled: Compiled) -> Any:
    """The bytes of its arguments, results and temporary arrays."""
    memory = compiled.memory_analysis()
    assert memory is not None
    return memory


def operations_of(compiled: Compiled) -> float:
    """How many floating-point operations one run costs, as the compiler counts them."""
    costs = compiled.cost_analysis()
    assert costs is not None
    return costs["flops"]


def num_programs(function: Any) -> int:
    """The programs that a function under `jax.jit` holds, one for each set of shapes and static arguments."""
    return function._cache_size()
