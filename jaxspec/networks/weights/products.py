"""Products `x @ weight.T` of n tokens with a weight `[out, in]`, in the form that XLA computes fastest on a CPU.

What a product costs there depends on how its weight lies in memory, and on n:

    1 to 5    `x` times each block of 64 outputs `[in, 64]`: a block streams through once, and five tokens are what one
              kernel of XLA's library (YNNPACK, with AVX-512) holds in registers.
    6 to 32   `weight @ x.T`, with the columns filled up to 8, 16 or 32: the kernels are so wide, and another width is
              dearer than the next of these.
    more      `weight @ x.T`.

The first needs the weight a second time, `blocks_of(weight)`. Under `vmap` what counts are the tokens of all rows
together. `scripts/product_forms.py` measures all forms.
"""

import jax
import jax.numpy as jnp

from jaxspec.base import BLOCK

FEW = 5
"""Tokens up to which the blocks are the faster form."""

WIDTHS = (8, 16, 32)
"""Columns that a product of fewer tokens is filled up to."""

# Full float32 products where the network is float32; a GPU would otherwise round factors to TF32.
PRECISION = jax.lax.Precision.HIGHEST


def has_blocks(num_out: int) -> bool:
    """Whether a weight of so many outputs is made of whole blocks; if not, `multiply` does without."""
    return num_out % BLOCK == 0


def blocks_of(weight: jax.Array) -> jax.Array:
    """`[out / 64, in, 64]` from `[out, in]`."""
    return weight.reshape(-1, BLOCK, weight.shape[1]).swapaxes(1, 2)


@jax.custom_batching.custom_vmap
def multiply(weight: jax.Array, blocks: jax.Array | None, x: jax.Array) -> jax.Array:
    """`x @ weight.T`, `[n, out]`.

    Args:
        weight: `[out, in]`.
        blocks: `blocks_of(weight)`, or None where the weight has none.
        x: `[n, in]`.
    """
    return _by_blocks(blocks, x) if blocks is not None and x.shape[0] <= FEW else _filled(weight, x)


@multiply.def_vmap
def _multiply_rows(
    size: int, is_batched: tuple[bool, bool | None, bool], weight: jax.Array, blocks: jax.Array | None, x: jax.Array
) -> tuple[jax.Array, bool]:
    """`[B, n, out]` from `[B, n, in]`: one product over all tokens, if the weights are the same for every row."""
    if is_batched[0] or is_batched[1]:
        axes = tuple(0 if batched else None for batched in (is_batched[0], is_batched[2]))
        return jax.vmap(_filled, in_axes=axes)(weight, x), True
    return multiply(weight, blocks, x.reshape(-1, x.shape[2])).reshape(size, x.shape[1], -1), True


def _by_blocks(blocks: jax.Array, x: jax.Array) -> jax.Array:
    # Without the first two barriers XLA folds what stands around the product into it and multiplies in another, slow
    # form; without the last it moves the way back to `[n, out]` behind what follows, and repeats it for every block.
    rows = jax.lax.optimization_barrier(jnp.broadcast_to(x, (blocks.shape[0], *x.shape)))
    product = jax.lax.dot_general(rows, blocks, (((2,), (1,)), ((0,), (0,))), precision=PRECISION)
    product = jax.lax.optimization_barrier(product)
    return jax.lax.optimization_barrier(product.swapaxes(0, 1).reshape(x.shape[0], -1))


def _filled(weight: jax.Array, x: jax.Array) -> jax.Array:
    n = x.shape[0]
    width = next((width for width in WIDTHS if n <= width), n) if n > FEW else n
    if width > n:  # behind a barrier, or XLA would leave the filling out again
        x = jax.lax.optimization_barrier(jnp.pad(x, ((0, width - n), (0, 0))))
    return by_columns(weight, x)[:n]


def by_columns(weight: jax.Array, x: jax.Array) -> jax.Array:
    """`x @ weight.T` as `weight @ x.T`."""
    columns = jax.lax.optimization_barrier(x.T)
    return jax.lax.optimization_barrier(jnp.matmul(weight, columns, precision=PRECISION)).T
