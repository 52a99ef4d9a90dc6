"""Values of options: trees by their words."""

import pytest

from jaxspec import tree
from jaxspec.catalogue import choosing
from jaxspec.cli import values


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("chain:4", tree.chain(4)),
        ("star:3", tree.star(3)),
        ("chains:2x3", tree.chains(2, 3)),
        ("comb:3x4", tree.comb(3, 4)),
        ("k-ary:2x3", tree.k_ary(2, 3)),
        ("-1, 0, 0", tree.star(2)),
        ("optimal", choosing.Optimal()),
        ("optimal:16", choosing.Optimal(16)),
    ],
)
def test_trees_by_their_words(text, wanted):
    assert values.shape(text) == wanted
