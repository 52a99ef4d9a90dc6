"""Strict JAX for every test: no silent rank or dtype promotion, no key used twice."""

import jax
import pytest

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_default_matmul_precision", "highest")


@pytest.fixture(autouse=True, scope="module")
def _few_programs():
    """Drops a file's compiled programs behind it: thousands of them would use up the memory maps of a process."""
    yield
    jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)
