"""What the README's pictures show."""

import numpy as np
import picture
import pytest
import recording
from rich.text import Text

from jaxspec import plan
from jaxspec.cli.show.text import ACCEPTED, OWN
from jaxspec.profiles import Profile
from jaxspec.tree import TokenTree

ACCEPTANCE = np.array([[0.5, 0.2], [0.4, 0.1], [0.6, 0.1]])


def test_shares_of_a_tree_add_up_to_its_tokens():
    shape = TokenTree((-1, 0, 0, 1, 1, 2, 3))
    shares = picture.accepted(shape, ACCEPTANCE)
    assert shares == pytest.approx([1, 0.5, 0.2, 0.2, 0.05, 0.08, 0.12])
    assert sum(shares) == pytest.approx(plan.expected_tokens(shape, ACCEPTANCE))


def test_nodes_are_drawn_apart_and_first_children_below_their_parents():
    shape = plan.optimal_tree(np.asarray(Profile.load(picture.PROFILE).acceptance), 24, max_depth=7)
    where = picture.places(shape)
    assert len(set(where)) == shape.size
    for node in range(1, shape.size):
        (x, y), (above, height) = where[node], where[shape.parents[node]]
        assert y == height - 1
        assert (x == above) == (shape.child_rank[node] == 0)


def test_a_recording_keeps_the_colours_of_what_was_accepted():
    text = Text.assemble(("Light", ACCEPTED), (" scatters", OWN))
    svg = recording.recorded("Why?", text, "2 tokens")
    for styled, plain in ((svg, True), (recording.recorded("Why?", Text(text.plain), "2 tokens"), False)):
        assert ("Light scatters" in styled.replace("&#160;", " ")) != plain
