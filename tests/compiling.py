"""How the programs of the tests are compiled: nearly all of the suite's time is compilation of tiny programs.

What is set here is set in the environment, which programs that tests start inherit; a variable that is set already
stands. `XLA_FLAGS= pytest` compiles as users do.
"""

import importlib.util
import mmap
import os
from pathlib import Path

CACHE = Path(__file__).parent / ".programs"
"""Compiled programs, which the workers of a run and later runs share."""

# The older emitters and LLVM without its expensive passes. The level of optimisation stays: with a lower one, residuals
# of SEQUOIA's rule that no draw reaches no longer sum to 1, and the tests would check another arithmetic than users'.
FLAGS = {"xla_cpu_use_fusion_emitters": "false", "xla_llvm_disable_expensive_passes": "true"}


def prepare() -> None:
    """Sets JAX's and XLA's variables where they are not set; to be called before JAX is imported."""
    chosen = {
        "XLA_FLAGS": " ".join(f"--{name}={value}" for name, value in FLAGS.items() if _is_known(name)),
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",  # below, reading costs as much as compiling
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    for name, value in chosen.items():
        os.environ.setdefault(name, value)


def _is_known(flag: str) -> bool:
    """Whether this version of XLA has a flag: one that it does not know would end the process."""
    found = importlib.util.find_spec("jaxlib")
    for folder in (found.submodule_search_locations or ()) if found else ():
        for library in Path(folder).glob("*common*"):
            with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                if content.find(flag.encode()) >= 0:
                    return True
    return False
