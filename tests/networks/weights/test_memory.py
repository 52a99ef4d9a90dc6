import gc
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec import networks
from jaxspec.networks.weights import memory

pytestmark = pytest.mark.skipif(jax.default_backend() != "cpu", reason="parameters are packed on a CPU only")


def some_params():
    drawn = jax.random.normal(jax.random.key(0), (3, 50))
    shared = jnp.arange(7, dtype=jnp.int32)
    layers = {"0": {"weight": drawn, "bias": shared}, "1": {"weight": drawn.astype(jnp.bfloat16), "bias": shared}}
    return {"layers": layers, "scale": jnp.float32(2.5)}


def test_packed_parameters_are_the_same_and_lie_behind_one_another():
    params = some_params()
    found = networks.packed(params)
    jax.tree.map(np.testing.assert_array_equal, found, params)
    assert jax.tree.map(lambda leaf: (leaf.dtype, leaf.shape, leaf.committed), found) == jax.tree.map(
        lambda leaf: (leaf.dtype, leaf.shape, False), params
    )
    layers = found["layers"]
    assert layers["0"]["bias"] is layers["1"]["bias"]
    arrays = {leaf.unsafe_buffer_pointer(): leaf for leaf in jax.tree.leaves(found)}
    assert len(arrays) == 4
    assert all(address % memory.ALIGNMENT == 0 for address in arrays)
    ends = [address + leaf.nbytes for address, leaf in sorted(arrays.items())]
    gaps = np.array(sorted(arrays)[1:]) - ends[:-1]
    assert gaps.min() >= 0
    assert gaps.max() < memory.ALIGNMENT


def test_packed_parameters_hold_their_memory():
    params = some_params()
    found = networks.packed(params)
    gc.collect()
    _ = [np.full(1000, 7.0) for _ in range(100)]
    jax.tree.map(np.testing.assert_array_equal, found, params)


def test_they_are_in_memory_for_which_huge_pages_were_asked():
    if not pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled").exists():
        pytest.skip("no transparent huge pages on this system")
    found = networks.packed({"weight": jnp.ones((2048, 1024))})
    address = found["weight"].unsafe_buffer_pointer()
    mappings = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path("/proc/self/smaps").read_text())
    [mapping] = [one for one in mappings if one and _holds(one, address + 2**22)]
    flags = re.search(r"VmFlags:(.*)", mapping)
    assert flags is not None
    assert " hg" in flags[1]


def _holds(mapping: str, address: int) -> bool:
    begin, end = (int(edge, 16) for edge in mapping.split(" ", 1)[0].split("-"))
    return begin <= address < end
