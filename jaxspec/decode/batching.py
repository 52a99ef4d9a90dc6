"""What a round, which is written for one row, may ask of the batch that it is vmapped over."""

import jax
from jax.custom_batching import custom_vmap


@custom_vmap
def any_row(flag: jax.Array) -> jax.Array:
    """`[]` bool, whether a flag holds, in a batch: in any row.

    The condition of a loop or a `cond` inside a round. Where it is one a row, `vmap` runs both sides of a `cond`, and
    has a loop select between the old and the new carry of each row in each step, and scatter where all rows write the
    same slot.
    """
    return flag


@any_row.def_vmap
def _any_of_batch(batch_size: int, is_batched: list[bool], flags: jax.Array) -> tuple[jax.Array, bool]:
    del batch_size
    return any_row(flags.any(axis=0) if is_batched[0] else flags), False
