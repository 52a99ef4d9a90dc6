"""What the closed forms take: arrays as numbers, and nothing that is no argument."""

import math
from typing import cast

import numpy as np
import pytest

from jaxspec import theory


def test_arrays_give_their_shape():
    alpha = np.array([[0.0, 0.5], [0.9, 1.0]])
    assert theory.accepted_pmf(alpha, 3).shape == (2, 2, 4)
    functions = (
        theory.chain_tokens,
        theory.expected_accepted,
        theory.chain_rollback,
        theory.overlap_tokens,
        theory.overlap_rollback,
        theory.theorem_1_tokens,
        lambda alpha, length: theory.overlap_tokens_limit(alpha),
        lambda alpha, length: theory.chain_speedup(alpha, length, 6),
        lambda alpha, length: theory.overlap_speedup(alpha, length, 6, alpha),
        lambda alpha, length: theory.theorem_1_time(alpha, length, 6),
        lambda alpha, length: theory.best_chain(alpha, 1, 6).speedup,
        lambda alpha, length: theory.best_overlap(alpha, 1, 6, alpha).length,
    )
    for function in functions:
        values = function(alpha, 3)
        assert values.shape == alpha.shape
        for index, value in np.ndenumerate(values):
            assert function(float(alpha[index]), 3) == pytest.approx(value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.chain_tokens(1.2, 3), r"alpha is 1\.2"),
        (lambda: theory.chain_tokens(float("nan"), 3), "alpha is nan"),
        (lambda: theory.chain_tokens(np.array([0.5, -0.1]), 3), "alpha is .* a probability lies in"),
        (lambda: theory.overlap_tokens(0.5, 3, 1.5), r"fork_alpha is 1\.5"),
        (lambda: theory.chain_tokens(0.5, -1), "length is -1, but at least 0"),
        (lambda: theory.chain_rollback(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.overlap_tokens(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.overlap_rollback(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.theorem_1_tokens(0.5, 0), "length is 0, but at least 1"),
        (lambda: theory.chain_tokens(0.5, cast(int, 2.5)), r"length is 2\.5, but an integer"),
        (lambda: theory.overlap_rollback_all(0.5, 4, 0.7, 0), "branches is 0"),
        (lambda: theory.chain_time(0.5, 4, -1, 10), "draft_time is -1"),
        (lambda: theory.chain_time(0.5, 4, 1, lambda n: -n), r"verify_time\(5\) is -5"),
        (lambda: theory.overlap_time(0.5, 4, 1, math.inf), "verify_time is inf"),
        (lambda: theory.chain_speedup(0.5, 4, 0), "c is 0, but target step / draft step"),
        (lambda: theory.overlap_speedup(0.5, 4, -2), "c is -2"),
        (lambda: theory.chain_region(math.nan), "c is nan"),
        (lambda: theory.ideal_time(0, 4), "length is 0"),
        (lambda: theory.theorem_1_time(0.5, 4, 0), "c is 0"),
        (lambda: theory.best_chain(0.5, 1, 10, max_length=-1), "max_length is -1"),
        (lambda: theory.best_overlap(0.5, 1, 10, max_length=0), "max_length is 0"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
