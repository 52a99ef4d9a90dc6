"""Strict JAX for every test: no silent rank or dtype promotion, no key used twice. And programs that compile fast."""

import gc
import os
from pathlib import Path

import compiling

compiling.prepare()  # before JAX has a backend

import jax  # noqa: E402
import pytest  # noqa: E402

jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_default_matmul_precision", "highest")


gc.set_threshold(100_000, 50, 1000)  # tracing makes many objects, and none of them goes in circles

MAPS = Path("/proc/self/maps")
MOST_MAPS = 30_000
"""Memory maps that a process may have before its programs are dropped; Linux allows 65,530, and a program has a few."""


@pytest.fixture(autouse=True, scope="module")
def _programs(request):
    """Files share their programs, but for those of a file that patches: what it traced may hold a planted mistake."""
    yield
    patches = any("monkeypatch" in item.fixturenames for item in request.session.items if item.module is request.module)
    if patches or (MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS):
        jax.clear_caches()


@pytest.fixture
def key():
    return jax.random.key(0)


def pytest_report_header() -> str:
    return f"XLA_FLAGS={os.environ['XLA_FLAGS']}, compiled programs in {os.environ['JAX_COMPILATION_CACHE_DIR']}"
