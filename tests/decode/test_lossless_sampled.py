"""At temperature above 0: the joint law of several tokens, through the whole decoder, is the target's.

The table models depend on the last token alone, so the law is exact. Drafts are far from their targets and limits are
long enough for several rounds: noise that is used twice shows in the joint law, where it may not in the first token's.
With 2^17 samples the expected distance of K equally likely events is about .4 sqrt(K / 2^17).
"""

import jax.numpy as jnp
import numpy as np
import pytest
from checks import assert_joint_law
from laws import MODEL, PARAMS, law
from toys import TableLM

from jaxspec import decode, plan, tree, verify
from jaxspec.decode.trees.static import StaticTree
from jaxspec.sampling import Sampling

METHODS = {"sequoia": decode.sequoia, "topk": decode.topk}
TREES = {
    "chain": tree.chain(2),
    "star": tree.star(2),
    "binary": tree.k_ary(2, 2),
    "ternary": tree.k_ary(3, 2),
    "optimal": plan.optimal_tree([0.6, 0.25], 7),
}


@pytest.mark.parametrize(
    ("rule", "shape"), [*(("sequoia", shape) for shape in TREES), ("topk", "chain"), ("topk", "ternary")]
)
def test_joint_law_of_three_tokens(rule, shape):
    decoder = METHODS[rule](MODEL, MODEL, TREES[shape])
    assert_joint_law(decoder, PARAMS, law(), 3, 0.012)


def test_constructors_name_their_rules():
    chain, binary = TREES["chain"], TREES["binary"]
    assert decode.speculative(MODEL, MODEL, 2) == decode.sequoia(MODEL, MODEL, chain)
    assert decode.sequoia(MODEL, MODEL, binary).drafter == StaticTree(MODEL, MODEL, binary, verify.RULES["sequoia"])
    assert decode.topk(MODEL, MODEL, binary).drafter == StaticTree(MODEL, MODEL, binary, verify.RULES["topk"])


@pytest.mark.parametrize("shape", ["chain", "binary"])
def test_joint_law_over_several_rounds(shape):
    """Four tokens: with a draft this far off, two to four rounds."""
    assert_joint_law(decode.sequoia(MODEL, MODEL, TREES[shape]), PARAMS, law(), 4, 0.02)


def test_joint_law_of_plain_decoding():
    """The first token is sampled too."""
    assert_joint_law(decode.autoregressive(MODEL), PARAMS, law(), 3, 0.012)


def test_zero_probabilities_on_both_sides():
    """Tokens that target or draft can't emit; the draft's support is smaller than its siblings are many."""
    with np.errstate(divide="ignore"):
        target = np.log(np.array([[0.0, 0.3, 0.7], [0.5, 0.0, 0.5], [0.2, 0.8, 0.0]]))
        draft = np.log(np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.5, 0.5]]))
    params = {
        name: {"table": jnp.asarray(table, jnp.float32)} for name, table in (("target", target), ("draft", draft))
    }
    decoder = decode.sequoia(MODEL, MODEL, TREES["binary"])
    assert_joint_law(decoder, params, np.exp(target), 3, 0.012, sampling=Sampling(1.0))


def test_draft_of_limited_length_keeps_the_law():
    """Nodes that can't be drafted are not there; the law is the target's on both sides of the limit."""
    decoder = decode.sequoia(MODEL, TableLM(3, max_length=2), TREES["binary"])
    assert_joint_law(decoder, PARAMS, law(), 3, 0.02, num_keys=1)
