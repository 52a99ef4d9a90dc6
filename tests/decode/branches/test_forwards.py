"""Which forwards of the draft a batch's rounds really run, counted while they run."""

import dataclasses

import checks
import jax
import numpy as np
import pytest
from toys import CtxLM, noisy, pair

from jaxspec import hrad
from jaxspec.decode.branches.decoder import branch_decoder

FORWARDS: list[int] = []
"""The number of tokens of each of a `Counted` model's forwards."""

LENGTH, BRANCHES = 4, 3


@dataclasses.dataclass(frozen=True)
class Counted(CtxLM):
    """A model that writes each of its forwards down, once for a whole batch."""

    def apply(self, params, tokens, positions, context, block, slot, mask):
        jax.debug.callback(lambda: FORWARDS.append(len(tokens)))
        return super().apply(params, tokens, positions, context, block, slot, mask)


@pytest.mark.parametrize("noise", [0.0, 0.4])
@pytest.mark.parametrize("has_draft_stage", [False, True], ids=["", "staged"])
def test_forwards_of_a_batch(has_draft_stage, noise):
    """G over the branches each round; over one token only where a row is fresh, for as long as one drafts alone."""
    exact = pair("ctx").params["target"]
    params = {"target": exact, "draft": noisy(exact, noise)}
    decoder = branch_decoder(
        CtxLM(11), Counted(11), LENGTH, BRANCHES, hrad.Confidence(0.3), has_draft_stage=has_draft_stage
    )
    num_rounds, alone = 0, 0

    def look(state):
        nonlocal num_rounds, alone
        is_fresh = np.asarray(state.memory.is_fresh & ~state.row.is_finished)
        length = np.where(np.asarray(state.row.num_rounds) > 0, LENGTH if has_draft_stage else 1, 1)
        num_rounds, alone = num_rounds + 1, alone + int((is_fresh * length).max())
        return state

    FORWARDS.clear()
    _, reports = checks.steps(decoder, params, checks.PROMPTS[1:3], 20, change=look)
    jax.effects_barrier()
    assert FORWARDS.count(BRANCHES) == LENGTH * num_rounds
    assert FORWARDS.count(1) == alone
    assert alone == 1 if noise == 0.0 else alone > 1
    rejections = sum(int(info.is_rejected.any()) for _, info in reports)
    assert (rejections == 0) == (noise == 0.0)
