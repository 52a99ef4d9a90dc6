"""The joint law of three tokens through the whole state machine of branch decoding, by enumeration: every cut."""

import pytest
from machines import FixedClass, ReadsBoth, assert_exact, machine

from jaxspec import hrad, verify

EPSILONS = (0.0, 0.25, 0.55, 1.0)
"""None of the largest probabilities of 3 tokens lies below .25, some lie below .55."""

CUTS = {
    "keep all": hrad.KEEP_ALL,
    "H-RAD none": hrad.HRad(FixedClass(hrad.NONE), 0.25),
    "H-RAD all": hrad.HRad(FixedClass(hrad.ALL), 0.25),
    **{f"confidence {epsilon}": hrad.Confidence(epsilon) for epsilon in EPSILONS},
    **{f"H-RAD partial {epsilon}": hrad.HRad(FixedClass(hrad.PARTIAL), epsilon) for epsilon in EPSILONS},
    **{f"H-RAD {epsilon}": hrad.HRad(ReadsBoth(), epsilon) for epsilon in EPSILONS},
}
FORKS = {"sequoia": verify.SEQUOIA, "topk": verify.TOP_K}


@pytest.mark.parametrize("staged", [False, True], ids=["", "staged"])
@pytest.mark.parametrize("fork", FORKS)
@pytest.mark.parametrize("length", [2, 3])
def test_every_cut(length, fork, staged):
    """Three branches of two and three tokens: all classes of H-RAD, all thresholds, both ways to go on."""
    seen = set()
    for cut in CUTS.values():
        taken_apart = machine(3, length, 3, cut, FORKS[fork], staged)
        assert_exact(taken_apart)
        seen |= taken_apart.seen
    assert {pending for pending, _ in seen} == set(range(length))
    assert {active for _, active in seen} == ({1, 2} if fork == "sequoia" else {1})
