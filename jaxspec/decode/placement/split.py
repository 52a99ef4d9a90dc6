"""Branch decoding on two devices: the draft continues its branches on one while the target verifies on the other.

Each device has its model's weights and context and a copy of the row, and runs its half of the round as compiled
programs of its own, composed of the very methods that `BranchDecoder.round` is composed of. A round is

    draft's device                                  target's device
    draft_stage, if there is one
                        ── the line's tokens ──►
    draft_branches                                  verify_pending
                        ── line, probabilities ──►
                                                    resolve, emit, commit_target
                        ◄── outcome, evidence ──
    emit, commit_draft, go_on, counts

with the two in the middle at the same time. What crosses is as long as a line, whatever the capacity; the draft's
entries stay where they are. The host only
queues all this, and looks at whether every row is finished a round late, so that no device waits for it.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec import cache
from jaxspec.base import Model, Output, Params
from jaxspec.decode import loop, stats
from jaxspec.decode import state as states
from jaxspec.decode.branches import counts as counts_
from jaxspec.decode.branches.decoder import BranchDecoder
from jaxspec.decode.branches.lines import Branches, Evidence, Line, Memory, Verdict
from jaxspec.decode.loop import Generation
from jaxspec.decode.request import Asked, Request, checked
from jaxspec.decode.state import Row, State

Device = Any
"""`jax.Device`, which the type checker does not take for a type."""

Tree = TypeVar("Tree")


def generate_split(
    decoder: BranchDecoder,
    params: dict[str, Params],
    prompts: Sequence[Sequence[int]],
    *,
    target_device: Device,
    draft_device: Device,
    key: jax.Array,
    **asked: Any,
) -> Generation:
    """What `decode.generate` returns for the same arguments, by two devices: the same tokens in float32.

    One round is run beyond the last, which finds every row finished.

    Args:
        decoder: SpecBranch, PEARL or another `BranchDecoder`.
        params: As for `generate`. Those that `place` has placed are not copied.
        prompts: As for `generate`, like everything that is not named here.
        target_device: Of the target, its context, and the verification.
        draft_device: Of the draft, its context, and H-RAD. May be the target's.
        key: As for `generate`.
        **asked: As for `generate` (`Asked`); `max_new_tokens` must be among them.

    Raises:
        ValueError: Input that can't be decoded, or a decoder whose draft and target take turns.
    """
    if not isinstance(decoder, BranchDecoder):
        raise ValueError(
            f"{type(decoder).__name__} can't be split: its target waits for its draft, so that a second device gains "
            "nothing. Split decode.pearl or decode.specbranch, or run it by decode.generate."
        )
    request = checked(decoder, params, prompts, key, Asked(**asked))
    devices = Devices(target_device, draft_device)
    params = place(decoder, params, target_device=target_device, draft_device=draft_device)
    sides = _begin(decoder, params, devices, request)
    longest = request.prompt_lengths + request.max_new_tokens
    progress: Any = np.stack([request.prompt_lengths, np.zeros(request.size, np.int32)])
    while True:
        progress_before = progress
        sides, progress = _round(decoder, params, devices, sides)
        num_tokens, is_finished = np.asarray(progress_before)  # the one wait: for the round before this one
        if is_finished.all():
            return loop.generation(request, sides.target.row, sides.counts)
        reached = np.minimum(num_tokens + decoder.max_emitted, longest).max()  # by this round, at most
        slots = sides.target.row.tokens.shape[1]
        if reached + decoder.max_emitted > slots:
            sides = _grow(decoder, sides, 2 * slots)


def place(
    decoder: BranchDecoder, params: dict[str, Params], *, target_device: Device, draft_device: Device
) -> dict[str, Params]:
    """The parameters on the devices that `generate_split` reads them on; H-RAD's go with the draft's."""
    names = [*decoder.models, *decoder.extra_params]
    return {name: jax.device_put(params[name], target_device if name == "target" else draft_device) for name in names}


class Devices(NamedTuple):
    """Where the halves run."""

    target: Device
    draft: Device


class Sides(NamedTuple):
    """What is kept between rounds, each with a leading axis of B.

    Attributes:
        target: On the target's device: the rows, and the target's context.
        draft: On the draft's device: the rows without log-probabilities, the draft's context, and what is pending.
        counts: Also on the draft's device.
    """

    target: State
    draft: State
    counts: stats.Counts


def _round(
    decoder: BranchDecoder, params: dict[str, Params], devices: Devices, sides: Sides
) -> tuple[Sides, jax.Array]:
    """Queues one round; `[2, B]` int32: how many tokens each row then has, and whether it is finished."""
    target, draft, counts = sides
    target_params, draft_params = _of_target(params), _of_draft(params)
    if decoder.drafter.has_draft_stage:
        draft = draft._replace(memory=_draft_stage(decoder, draft_params, draft))
    line = send(draft.memory.line._replace(probs=None), devices.target)
    output = _verify(decoder, target_params, target, line)
    branches, tested = _draft(decoder, draft_params, draft)
    tested = send(tested, devices.target)
    target, verdict, evidence, progress = _settle(decoder, target_params, target, tested, output)
    verdict, evidence = send((verdict, evidence), devices.draft)
    draft, counts = _go_on(decoder, draft_params, draft, branches, verdict, evidence, counts)
    return Sides(target, draft, counts), progress


def send(tree: Tree, device: Device) -> Tree:
    """The arrays on another device, without waiting for them. All that crosses in a round passes through here."""
    return jax.device_put(tree, device)


def _begin(decoder: BranchDecoder, params: dict[str, Params], devices: Devices, request: Request) -> Sides:
    """Both sides with the prompts in their contexts, before the first round."""
    target = loop.begin(_half(decoder, "target"), _of_target(params), _on(devices.target, request))
    request = _on(devices.draft, request._replace(with_logprobs=False))
    draft = loop.begin(_half(decoder, "draft"), _of_draft(params), request)
    evidence = send(_first_evidence(decoder, _of_target(params), target), devices.draft)
    draft = draft._replace(memory=_first_memory(decoder, _of_draft(params), draft, evidence))
    counts = loop.zero_counts(decoder, request.size)
    # Arrays that depend on no argument of their program do not belong to a device for good until they are put there.
    return Sides(jax.device_put(target, devices.target), *jax.device_put((draft, counts), devices.draft))


def _grow(decoder: BranchDecoder, sides: Sides, slots: int) -> Sides:
    """Both sides with room for `slots` tokens a row."""
    return sides._replace(
        target=loop.grow(_half(decoder, "target"), sides.target, slots),
        draft=loop.grow(_half(decoder, "draft"), sides.draft, slots),
    )


def _of_target(params: dict[str, Params]) -> dict[str, Params]:
    return {"target": params["target"]}


def _of_draft(params: dict[str, Params]) -> dict[str, Params]:
    return {name: params[name] for name in params if name != "target"}


def _half(decoder: BranchDecoder, name: str) -> Any:
    """A half, which to the type checker is no decoder, as it has no rounds."""
    return _Half(decoder, name)


@dataclasses.dataclass(frozen=True)
class _Half:
    """One of the models, as a method without rounds: what reading the prompt and growing need."""

    decoder: BranchDecoder
    name: str

    @property
    def models(self) -> dict[str, tuple[Model, int]]:
        return {self.name: self.decoder.models[self.name]}

    @property
    def max_emitted(self) -> int:
        return self.decoder.max_emitted

    def init(self, params: dict[str, Params], row: Row) -> State:
        del params
        return State(row, {self.name: cache.empty(self.decoder.models[self.name][0], row.tokens.shape[0])})


def _on(device: Device, request: Request) -> Request:
    """The request, whose rows will be laid out on a device; with arrays of its own, as the state is donated."""
    keys, options = jax.device_put((request.keys, request.options), device, may_alias=False)
    return request._replace(keys=keys, options=options)


# Each of these runs where its arrays are, for all rows.


@functools.partial(jax.jit, static_argnames="decoder")
def _first_evidence(decoder: BranchDecoder, params: dict[str, Params], target: State) -> Evidence:
    return jax.vmap(lambda state: decoder.first_evidence(params, state))(target)


@functools.partial(jax.jit, static_argnames="decoder")
def _first_memory(decoder: BranchDecoder, params: dict[str, Params], draft: State, evidence: Evidence) -> Memory:
    return jax.vmap(lambda *row: decoder.drafter.first_memory(params, *row))(draft, evidence)


@functools.partial(jax.jit, static_argnames="decoder")
def _draft_stage(decoder: BranchDecoder, params: dict[str, Params], draft: State) -> Memory:
    return jax.vmap(lambda state: decoder.drafter.draft_stage(params, state).memory)(draft)


@functools.partial(jax.jit, static_argnames="decoder")
def _verify(decoder: BranchDecoder, params: dict[str, Params], target: State, line: Line) -> Output:
    return jax.vmap(lambda *row: decoder.verify_pending(params, *row))(target, line)


@functools.partial(jax.jit, static_argnames="decoder")
def _draft(decoder: BranchDecoder, params: dict[str, Params], draft: State) -> tuple[Branches, Branches]:
    """What was drafted, and the part of it that verification reads: without continuations and entries."""

    def one_row(state: State) -> tuple[Branches, Branches]:
        branches = decoder.drafter.draft_branches(params, state)
        nothing = jax.tree.map(lambda leaf: leaf[:0], branches.continuations)
        return branches, branches._replace(continuations=nothing, block=())

    return jax.vmap(one_row)(draft)


@functools.partial(jax.jit, static_argnames="decoder", donate_argnames="target")
def _settle(
    decoder: BranchDecoder, params: dict[str, Params], target: State, branches: Branches, output: Output
) -> tuple[State, Verdict, Evidence, jax.Array]:
    """The target's end of a round; `[2, B]` int32: how many tokens each row has, and whether it is finished."""

    def one_row(state: State, branches: Branches, output: Output) -> tuple[State, Verdict, Evidence, jax.Array]:
        verdict = decoder.resolve(state.row, branches, output.logits, states.round_key(state.row))
        row, _, kept = decoder.emit(state.row, branches, verdict, output.logits)
        context = decoder.commit_target(state, output.block, verdict, kept)
        evidence = decoder.evidence(params, row, output.hidden, verdict.num_accepted)
        progress = jnp.stack([row.num_tokens, row.is_finished.astype(jnp.int32)])
        return State(row, {"target": context}), verdict, evidence, progress

    return jax.vmap(one_row, out_axes=(0, 0, 0, 1))(target, branches, output)


@functools.partial(jax.jit, static_argnames="decoder", donate_argnames=("draft", "counts"))
def _go_on(
    decoder: BranchDecoder,
    params: dict[str, Params],
    draft: State,
    branches: Branches,
    verdict: Verdict,
    evidence: Evidence,
    counts: stats.Counts,
) -> tuple[State, stats.Counts]:
    """The draft's end of a round, which also counts it."""

    def one_row(
        state: State, branches: Branches, verdict: Verdict, evidence: Evidence, counts: stats.Counts
    ) -> tuple[State, stats.Counts]:
        row, emitted, kept = decoder.emit(state.row, branches, verdict, None)
        context = decoder.drafter.commit_draft(state, branches.block, verdict, kept)
        memory = decoder.drafter.go_on(params, row, branches, verdict, evidence)
        info = counts_.info_of(decoder.drafter, state, row, branches, verdict, emitted, kept)
        return State(row, {"draft": context}, memory), stats.add(counts, info)

    return jax.vmap(one_row)(draft, branches, verdict, evidence, counts)
