"""Rounds as they are run: what a round left behind, and what the next one made of it."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import jax
import numpy as np

from jaxspec import cache
from jaxspec.base import Params, Progress
from jaxspec.decode import Info, Sampling, State, loop
from jaxspec.decode import request as requests
from jaxspec.decode.branches.decoder import BranchDecoder
from jaxspec.sampling import GREEDY

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
    sampling: Sampling = GREEDY,
    draft_temperature: float | None = None,
    stop_ids: Sequence[int] = (),
    batch_size: int = BATCH_SIZE,
    progress: Progress | None = None,
) -> Iterator[tuple[Seen, Seen, np.ndarray, np.ndarray]]:
    """Neighbouring rounds of all prompts, as they are run: what was seen of each (a tuple of leaves `[B, …]`, on the
    host), then `[B]` the prompts' numbers, and `[B]` bool whether a row is one of them or fills the last batch.

    Args:
        observe: Gives what is read of a round, from the parameters, the state behind it and its `Info`; compiled.

    The others are as for `collect`.
    """
    if not prompts or batch_size < 1:
        raise ValueError(f"{len(prompts)} prompts, batch_size={batch_size}: at least one of each is needed.")
    longest = max(map(len, prompts)) + max_new_tokens + decoder.max_emitted
    capacity = cache.bucket(min(longest, requests.FIRST_CAPACITY))  # one for all batches, which compiles once
    for start in range(0, len(prompts), batch_size):
        numbers = np.arange(start, start + batch_size)
        numbers[numbers >= len(prompts)] = start  # the last batch keeps the compiled shape; its fillers are not logged
        request = requests.request(
            decoder,
            params,
            [prompts[number] for number in numbers.tolist()],
            jax.vmap(lambda number: jax.random.fold_in(key, number))(numbers.astype(np.uint32)),
            max_new_tokens,
            sampling,
            stop_ids,
            draft_temperature,
            False,
        )
        is_own = np.arange(start, start + batch_size) < len(prompts)
        before = None
        for state, info in loop.rounds(decoder, params, request, first_capacity=capacity):
            seen, is_finished = jax.device_get((observe(params, state, info), state.row.is_finished))
            if before is not None:
                yield before, seen, numbers, is_own
            before = seen
            if progress is not None:
                progress("rounds", start + int((is_finished & is_own).sum()), len(prompts))
