"""The measures of branch decoding, on models of which they are known."""

import jax.numpy as jnp
import numpy as np
import pytest
from branching import assert_counts_hold_together
from checks import run
from laws import independent
from toys import TableLM

from jaxspec import decode
from jaxspec.decode.branches import widths
from jaxspec.decode.branches.decoder import branch_decoder
from jaxspec.sampling import Sampling


@pytest.mark.parametrize(
    ("alpha", "length", "tokens", "rollback"),
    [(0.5, 4, 1.3043, 0.8370), (0.65, 8, 1.7094, 0.8611), (0.9, 5, 3.1272, 0.4371)],
)
def test_pearl_of_known_acceptance(alpha, length, tokens, rollback):
    """Independent acceptance of α at every position."""
    model, params = independent((1.0, 0.0), (alpha, 1.0 - alpha))
    options = {"sampling": Sampling(1.0), "logprobs": False}
    generation = run(decode.pearl(model, model, length), params, [[0]] * 128, 1500, **options)
    assert_counts_hold_together(decode.pearl(model, model, length), generation.stats.counts)
    total = generation.stats.total()
    assert total.tokens_per_round == pytest.approx(tokens, rel=0.015)
    assert total.rollback_path == pytest.approx(rollback, rel=0.015)
    assert total.rollback_all == total.rollback_path
    assert total.counts.drafted == length * total.rounds
    assert total.acceptance[0] == pytest.approx(alpha, abs=0.005)


def test_number_of_branches():
    """k = max(1, floor(k_max (1 - p)))."""
    found = [int(widths.ADAPTIVE(jnp.float32(p), 6)) for p in (0.0, 0.1, 0.26, 0.5, 0.67, 0.9, 1.0)]
    assert found == [6, 5, 4, 3, 1, 1, 1]
    assert int(widths.ALL(jnp.float32(0.9), 6)) == 6


def test_branches_of_a_run():
    """With one confidence everywhere, every round continues as many candidates; at temperature 0 too."""
    decoder = branch_decoder(TableLM(8), TableLM(8), 2, 6)
    for confidence, branches in ((0.15, 5), (0.26, 4), (0.45, 3), (0.55, 2), (0.9, 1)):
        draft = np.array([confidence, *[(1.0 - confidence) / 7] * 7])
        _, params = independent(np.full(8, 1 / 8), draft)
        counts = run(decoder, params, [[1], [2]], 12).stats.counts
        np.testing.assert_array_equal(counts.tally.branches, branches * counts.rounds)
        np.testing.assert_array_equal(counts.accepted, 12)  # both favour token 0, which is the first candidate
