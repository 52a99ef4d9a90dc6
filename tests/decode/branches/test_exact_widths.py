"""The joint law by enumeration, for every number of branches and of pending tokens; and the enumeration itself."""

import pytest
from machines import ReadsBoth, assert_exact, machine

from jaxspec import hrad, verify
from jaxspec.decode.branches import widths


@pytest.mark.parametrize("fork", verify.RULES)
@pytest.mark.parametrize(
    ("size", "length", "max_branches", "most"),
    [(3, 2, 1, (1, 1)), (3, 3, 1, (1, 1)), (3, 3, 2, (1, 1)), (4, 2, 3, (2, 2)), (4, 2, 4, (3, 2))],
)
def test_every_width(size, length, max_branches, most, fork):
    """One to four branches, of which two or three are tried with the flatter draft of four tokens."""
    seen = set()
    for cut, staged in ((hrad.Confidence(0.25), False), (hrad.HRad(ReadsBoth(), 0.55), True)):
        taken_apart = machine(size, length, max_branches, cut, verify.RULES[fork], staged)
        assert_exact(taken_apart)
        seen |= taken_apart.seen
    assert max(active for _, active in seen) == most[fork == "topk"]


@pytest.mark.parametrize("fork", verify.RULES)
def test_full_width(fork):
    """Every candidate is tried, whatever the confidence: all cuts, both ways to go on, three and four candidates."""
    for size, length, max_branches in ((3, 3, 3), (4, 2, 4)):
        for cut, staged in (
            (hrad.Confidence(0.25), False),
            (hrad.HRad(ReadsBoth(), 0.55), True),
            (hrad.KEEP_ALL, False),
        ):
            taken_apart = machine(size, length, max_branches, cut, verify.RULES[fork], staged, width=widths.ALL)
            assert_exact(taken_apart)
            assert {active for _, active in taken_apart.seen} == {max_branches}


def test_a_branch_of_one_token():
    """Nothing is ever pending: a fork at every position."""
    for cut in (hrad.KEEP_ALL, hrad.HRad(ReadsBoth(), 0.25)):
        taken_apart = machine(3, 1, 3, cut, staged=cut.reads_features)
        assert_exact(taken_apart)
        assert {pending for pending, _ in taken_apart.seen} == {0}


def test_enumeration_adds_up():
    """The weights of all lines behind a token are a distribution, and so is the law."""
    taken_apart = machine(3, 3, 3, hrad.HRad(ReadsBoth(), 0.25), staged=True)
    for ways in (*taken_apart.after.values(), *taken_apart.staged.values()):
        assert sum(weight for _, weight in ways) == pytest.approx(1.0, abs=1e-12)
    assert len({tuple(weight for _, weight in ways) for ways in taken_apart.after.values()}) == 9
    assert taken_apart.law(1).sum() == pytest.approx(1.0, abs=1e-6)
