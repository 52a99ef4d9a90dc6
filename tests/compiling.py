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

# One module for LLVM, without its passes, and the older emitters: a third of the time of the default. Tests that look
# at a compiled program ask for the users' (`compiled.for_users`).
FLAGS = {
    "xla_backend_optimization_level": 0,
    "xla_llvm_disable_expensive_passes": True,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}
USERS = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""XLA's defaults, for a program that is compiled with options of its own."""


def prepare() -> None:
    """Sets JAX's and XLA's variables where they are not set; to be called before JAX is imported."""
    chosen = {
        "XLA_FLAGS": " ".join(f"--{name}={str(value).lower()}" for name, value in FLAGS.items() if _is_known(name)),
        "JAX_COMPILATION_CACHE_DIR": str(CACHE),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
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
