"""Plain autoregressive decoding: one token for each forward. The baseline of every comparison."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec import base, cache, sampling
from jaxspec.base import Model, Output, Params
from jaxspec.decode import state as states
from jaxspec.decode.state import Info, Row, State


@dataclasses.dataclass(frozen=True)
class Autoregressive:
    """A decoder that emits one token of the target a round."""

    target: Model
    max_emitted = 1
    depth = 0
    max_children = 0

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        return {"target": (self.target, 1)}

    @property
    def forwards(self) -> dict[str, tuple[int, ...]]:
        return {"target": (1,)}

    def init(self, params: dict[str, Params], row: Row) -> State:
        """The state before the prompt is read."""
        return states.init(self, row)

    def round(self, params: dict[str, Params], state: State) -> tuple[State, Info]:
        """One forward over the newest token, and a draw of the next."""
        output = self.forward(params, state)
        token = self.resolve(state.row, output.logits[0], states.round_key(state.row))
        return self.commit(state, output, token)

    def forward(self, params: dict[str, Params], state: State) -> Output:
        """The target over the newest token."""
        row = state.row
        return base.forward(
            self.target,
            params["target"],
            row.root[None],
            row.root_position[None],
            state.contexts["target"],
            self.target.empty(1),
            0,
            jnp.ones((1, 1), bool),
        )

    def resolve(self, row: Row, logits: jax.Array, key: jax.Array) -> jax.Array:
        """`[]` int32 next token from `[V]` target logits, or `sampling.NOTHING`; the key is consumed."""
        row = states.reading(row, self.target.vocab_size)
        if row.options.temperature is None:
            return sampling.argmax(sampling.adjust(row.options, logits))
        return sampling.draw(key, sampling.target_distribution(row.options, logits))

    def commit(self, state: State, output: Output, token: jax.Array) -> tuple[State, Info]:
        """The state behind the `[]` next token."""
        row = state.row
        logprobs = None if row.logprobs is None else states.token_logprobs(output.logits, token[None])
        row, kept = states.emit(row, token[None], jnp.int32(1), logprobs)
        context = cache.commit(self.target, state.contexts["target"], output.block, kept, anchor=kept)
        info = Info.nothing(self)._replace(tokens=token[None], num_emitted=kept)
        return State(row, {"target": context}, state.memory), info


def autoregressive(target: Model) -> Autoregressive:
    """Plain decoding with `target`."""
    return Autoregressive(target)
