"""What a model returns is checked where it is called."""

import dataclasses
from collections.abc import Callable

import jax.numpy as jnp
import pytest
from toys import TableLM

from jaxspec import base, cache
from jaxspec.base import Output

MODEL = TableLM(5)


@dataclasses.dataclass(frozen=True)
class Wrong(TableLM):
    """A model whose output is changed on its way."""

    change: Callable[[Output], Output] = lambda output: output

    def apply(self, params, tokens, positions, context, block, slot, mask):
        return self.change(super().apply(params, tokens, positions, context, block, slot, mask))


def forward(model):
    params, tokens = {"table": jnp.zeros((5, 5))}, jnp.zeros(2, jnp.int32)
    mask = jnp.tril(jnp.ones((2, 2), bool))
    return base.forward(model, params, tokens, tokens, cache.empty(model, 8), model.empty(2), 0, mask)


def test_the_answer_is_handed_on():
    assert forward(MODEL).logits.shape == (2, 5)


@pytest.mark.parametrize(
    "change",
    [
        lambda output: output._replace(logits=output.logits[:1]),
        lambda output: output._replace(logits=output.logits[:, :4]),
        lambda output: output._replace(logits=output.logits.astype(int)),
        lambda output: output._replace(hidden=jnp.zeros((2, 5))),
        lambda output: output._replace(hidden=jnp.zeros((1, 3, 5))),
        lambda output: output._replace(block=MODEL.empty(3)),
    ],
    ids=["logits of one token", "a token too few", "integers", "features without layers", "features of one", "block"],
)
def test_another_answer_than_a_model_promises_is_refused(change):
    with pytest.raises(AssertionError):
        forward(Wrong(5, change=change))
