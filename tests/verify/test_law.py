"""The output law of a rule, by enumeration: what it takes and refuses."""

import numpy as np
import pytest

from jaxspec import verify

RISING, FALLING = (0.1, 0.2, 0.3, 0.4), (0.4, 0.3, 0.2, 0.1)


class TestOutputDistribution:
    """The enumeration itself."""

    def test_takes_a_rule_or_its_name(self):
        by_name = verify.output_distribution("sequoia", FALLING, RISING, 2)
        np.testing.assert_array_equal(by_name, verify.output_distribution(verify.SEQUOIA, FALLING, RISING, 2))

    @pytest.mark.parametrize(
        ("target", "draft", "count", "message"),
        [
            ((0.5, 0.4), (0.5, 0.5), 1, "sums to 0.9"),
            ((0.5, 0.5), (1.5, -0.5), 1, "non-negative"),
            ((0.5, 0.5), (0.5, np.nan), 1, "finite"),
            ((0.5, 0.5), (0.2, 0.3, 0.5), 1, "different vocabularies"),
            ((0.5, 0.5), (0.5, 0.5), 3, "between 1 and 2"),
            ((0.5, 0.5), (0.5, 0.5), 0, "between 1 and 2"),
        ],
    )
    def test_refuses(self, target, draft, count, message):
        with pytest.raises(ValueError, match=message):
            verify.output_distribution("sequoia", target, draft, count)

    def test_a_rule_that_returns_other_shapes(self):
        class Flat(verify.TopK):
            """Returns one number for all children."""

            def outcome(self, target_probs, draft_probs, children, active, support=None):
                accept, rest = super().outcome(target_probs, draft_probs, children, active, support)
                return accept.sum(), rest

        with pytest.raises(AssertionError, match="assert_shape"):
            verify.output_distribution(Flat(), FALLING, RISING, 2)
