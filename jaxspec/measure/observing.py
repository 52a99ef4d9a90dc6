"""Rounds as they are run: what a round left behind, and what the next one made of it."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from jaxspec import cache
from jaxspec.base import Params, Progress
from jaxspec.decode import Info, State, loop
from jaxspec.decode.branches.decoder import BranchDecoder
from jaxspec.decode.request import FIRST_CAPACITY, Asked, checked

Seen = TypeVar("Seen", bound=tuple)


BATCH_SIZE = 8
"""Prompts decoded side by side."""


def observed(
    decoder: BranchDecoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    observe: Callable[[dict[str, Params], State, Info], Seen],
    *,
    key: jax.Array,
    max_new_tokens: int,
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
    **asked: Any,
) -> Iterator[tuple[Seen, Seen, np.ndarray, np.ndarray]]:
    """Neighbouring rounds of all prompts, as they are run: what was seen of each (a tuple of leaves `[B, …]`, on the
    host), then `[B]` the prompts' numbers, and `[B]` bool whether a row is one of them or fills the last batch.

    Args:
        observe: Gives what is read of a round, from the parameters, the state behind it and its `Info`; compiled.

        **asked: As for `decode.generate`, but for the three that are set here.

    The others are as for `hrad.collecting.collect`.
    """
    if not prompts or batch_size < 1:
        raise ValueError(f"{len(prompts)} prompts, batch_size={batch_size}: at least one of each is needed.")
    longest = max(map(len, prompts)) + max_new_tokens + decoder.max_emitted
    capacity = cache.bucket(min(longest, FIRST_CAPACITY))  # one for all batches, which compiles once
    asked |= {"max_new_tokens": max_new_tokens, "logprobs": False, "first_capacity": capacity}
    for start in range(0, len(prompts), batch_size):
        numbers = np.arange(start, start + batch_size)
        numbers[numbers >= len(prompts)] = start  # the last batch keeps the compiled shape; its fillers are not logged
        batch = [prompts[number] for number in numbers.tolist()]
        keys = jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers.astype(np.uint32))
        request = checked(decoder, params, batch, keys, Asked(**asked))
        is_own = np.arange(start, start + batch_size) < len(prompts)
        before = None
        for state, info in loop.rounds(decoder, params, request):
            seen, is_finished = jax.device_get((observe(params, state, info), state.row.is_finished))
            if before is not None:
                yield before, seen, numbers, is_own
            before = seen
            if progress is not None:
                progress("rounds", start + int((is_finished & is_own).sum()), len(prompts))
