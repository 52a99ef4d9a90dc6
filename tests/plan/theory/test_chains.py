"""What a chain gives, against enumeration and worked and published numbers."""

import itertools
import math

import numpy as np
import pytest

from jaxspec import plan, theory, tree

ALPHAS = (0.0, 0.3, 0.65, 0.9, 1.0)


@pytest.mark.parametrize(("alpha", "length"), list(itertools.product(ALPHAS, (1, 2, 5))))
def test_chain_equals_enumeration_over_all_outcomes(alpha, length):
    pmf = np.zeros(length + 1)
    for outcome in itertools.product((0, 1), repeat=length):
        pmf[(*outcome, 0).index(0)] += math.prod(alpha if accepted else 1 - alpha for accepted in outcome)
    mean = float(pmf @ np.arange(length + 1))
    np.testing.assert_allclose(theory.accepted_pmf(alpha, length), pmf, atol=1e-15)
    assert theory.expected_accepted(alpha, length) == pytest.approx(mean, abs=1e-14)
    assert theory.chain_tokens(alpha, length) == pytest.approx(mean + 1)
    assert theory.chain_tokens(alpha, length) == pytest.approx(plan.expected_tokens(tree.chain(length), (alpha,)))
    assert theory.chain_rollback(alpha, length) == pytest.approx(1 - mean / length, abs=1e-14)
    assert theory.theorem_1_tokens(alpha, length) == pytest.approx(mean * (1 + pmf[-1]) / 2)


def test_worked_chains():
    assert [theory.chain_tokens(0.6, length) for length in (0, 1, 2, 3)] == pytest.approx([1, 1.6, 1.96, 2.176])
    assert theory.chain_speedup(0.6, 2, 10) == pytest.approx(1.96 / (2 * 0.1 + 1))
    assert theory.chain_speedup(1.0, 4, 4) == pytest.approx(5 * 4 / 8)
    assert theory.chain_tokens(1 - 1e-13, 50) == pytest.approx(51, abs=1e-9)  # where the closed form cancels
