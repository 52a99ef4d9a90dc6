"""Strict JAX for every test: no silent rank or dtype promotion, no key used twice. And programs that compile fast."""

import os

import compiling

compiling.prepare()  # before JAX has a backend

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(autouse=True, scope="module")
def _own_programs():
    """Drops a file's programs behind it: what a file traced with a planted mistake is no other file's.

    Thousands of programs would use up the memory maps of a process, too. The next file reads from disk what it shares.
    """
    yield
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)


def pytest_report_header() -> str:
    return f"XLA_FLAGS={os.environ['XLA_FLAGS']}, compiled programs in {os.environ['JAX_COMPILATION_CACHE_DIR']}"
