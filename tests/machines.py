"""The joint law of three tokens through the whole state machine of branch decoding, by enumeration.

What is enumerated is what runs. The states between rounds are those that `BranchDrafter.go_on` and `_cut_stage` leave;
a line is put together by `position` for every ordered draw; `tried` says which candidates there are; `test` gives each
position's acceptance probabilities and the law of the correction. Of the continuations only the survivor's is
enumerated. With table models a state is the last two tokens and the line up to the branch point, so that states merge.
"""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import reference
from toys import TableLM, TokenFeatLM

from jaxspec import cache, hrad, sampling, verify
from jaxspec.decode import proposals
from jaxspec.decode.branches import widths
from jaxspec.decode.branches.decoder import BranchDecoder
from jaxspec.decode.branches.drafter import BranchDrafter
from jaxspec.decode.branches.lines import Branches, Line, Memory, Verdict
from jaxspec.decode.state import Row, State

TARGETS = {
    3: np.array([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6], [0.35, 0.5, 0.15]]),
    4: np.array([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.35, 0.25, 0.25, 0.15], [0.05, 0.4, 0.15, 0.4]]),
}
DRAFTS = {
    3: np.array([[0.15, 0.25, 0.6], [0.5, 0.4, 0.1], [0.3, 0.1, 0.6]]),
    4: np.array([[0.1, 0.28, 0.3, 0.32], [0.31, 0.3, 0.24, 0.15], [0.7, 0.15, 0.1, 0.05], [0.26, 0.24, 0.27, 0.23]]),
}
"""The rows of 4 tokens are flat enough for two or three candidates under either fork rule."""

COUNT = 3
BATCH = 1024
"""States that are judged at a time."""

OPTIONS = jax.tree.map(lambda leaf: np.asarray(leaf)[0], sampling.options(sampling.Sampling(1.0), None, 1, 3))


@dataclasses.dataclass(frozen=True)
class FixedClass:
    """A network that always gives one class."""

    label: int

    def apply(self, params, inputs):
        return jax.nn.one_hot(self.label, hrad.NUM_CLASSES)


@dataclasses.dataclass(frozen=True)
class ReadsBoth:
    """A network whose class depends on the last two committed tokens: the features' and the embedding's."""

    def apply(self, params, inputs):
        token, newest = jnp.split(inputs, 2)
        return jax.nn.one_hot((jnp.argmax(token) + 2 * jnp.argmax(newest)) % 3, hrad.NUM_CLASSES)


class Place(NamedTuple):
    """A state between two rounds.

    Attributes:
        previous: The token before the root.
        root: The newest token.
        line: What identifies the line up to its branch point; None: there is none.
        is_first: Whether no round was run yet.
    """

    previous: int
    root: int
    line: tuple | None
    is_first: bool


class Machine:
    """A decoder of two table models, taken apart.

    Attributes:
        decoder: The decoder.
        seen: Numbers of pending tokens and of active candidates that occurred.
    """

    def __init__(self, decoder: BranchDecoder, target: np.ndarray, draft: np.ndarray):
        self.decoder, self.drafter, self.size = decoder, decoder.drafter, len(target)
        self.params = {
            "target": {"table": np.log(target).astype(np.float32)},
            "draft": {"table": np.log(draft).astype(np.float32)},
            "hrad": None,
        }
        drafter = dataclasses.replace(self.drafter, cut=hrad.Confidence(0.5), has_draft_stage=False)
        self.canonical = dataclasses.replace(decoder, drafter=drafter)
        self.seen: set[tuple[int, int]] = set()
        self._lines: dict[tuple, tuple[Line, int]] = {}
        self._judged: dict[tuple, tuple] = {}
        self._memo: dict[tuple, np.ndarray] = {}
        self._positions(draft)
        self._continuations()

    def law(self, first: int) -> np.ndarray:
        """`[V] * COUNT` law of the tokens behind a prompt of one token."""
        starts = [(place, 1.0) for place in [Place(0, first, None, True)]]
        return self._mixture(starts, COUNT)

    def _positions(self, draft: np.ndarray) -> None:
        """Each token's possible next positions of a line: entries of it, with their weights."""
        count, tokens = self.drafter.max_branches, range(self.size)
        draws = [[*verify.SEQUOIA.draws(draft[token], count)] for token in tokens]
        places = np.array([[drawn for drawn, _ in of] for of in draws], np.int32)
        self.weights = np.array([[weight for _, weight in of] for of in draws])
        table = _positions(self.canonical.drafter, self.params, places)
        self.positions = jax.tree.map(np.asarray, table)

    def _continuations(self) -> None:
        """The states behind a surviving or staged line, by the last two tokens."""
        drafter, size, length = self.drafter, self.size, self.drafter.length
        choices = np.array([*itertools.product(range(self.weights.shape[1]), repeat=length)])
        roots, entries, weights = [], [], []
        for root in range(size):
            before, weight, entry = np.full(len(choices), root), np.ones(len(choices)), []
            for choice in choices.T:
                entry.append((before, choice))
                weight = weight * self.weights[before, choice]
                before = self.positions.tokens[before, choice]
            roots.append(np.full(len(choices), root))
            entries.append(np.array(entry))  # [G, 2, n]
            weights.append(weight)
        entry = np.concatenate(entries, axis=2)
        lines = jax.tree.map(lambda leaf: np.swapaxes(leaf[entry[:, 0], entry[:, 1]], 0, 1), self.positions)
        self.after: dict[tuple[int, int], list] = {}
        self.staged: dict[tuple[int, int, bool], list] = {}
        for previous in range(size):
            rows = self._rows(np.full(entry.shape[2], previous), np.concatenate(roots))
            hidden: Any = np.zeros((length, 1, size), np.float32)
            hidden[0, 0, previous] = 1.0
            memory = jax.vmap(functools.partial(self._survivor, hidden))(rows, lines)
            assert not memory.is_fresh.any()
            self._collect(self.after, (previous,), jax.device_get(memory), roots, weights)
            for is_first in (False, True) if drafter.has_draft_stage else ():
                rows = rows._replace(num_rounds=np.full_like(rows.num_tokens, 0 if is_first else 1))
                memory = jax.vmap(functools.partial(self._staged, hidden))(rows, lines)
                self._collect(self.staged, (previous, is_first), jax.device_get(memory), roots, weights)

    def _survivor(self, hidden: jax.Array, row: Row, line: Line) -> Memory:
        drafter, zero = self.drafter, jnp.zeros((), jnp.int32)
        count, length = drafter.max_branches, drafter.length
        lines = jax.tree.map(lambda leaf: jnp.stack([leaf] * count), line)
        block = drafter.draft.empty(length * (1 + count))
        branches = Branches(line, zero, jnp.ones(count, bool), zero, lines, block)
        verdict = Verdict(zero, zero, jnp.ones((), bool), row.root, jnp.zeros((length, count)))
        evidence = self.decoder.evidence(self.params, row, hidden, zero)
        return drafter.go_on(self.params, row, branches, verdict, evidence)

    def _staged(self, hidden: jax.Array, row: Row, line: Line) -> Memory:
        zero = jnp.zeros((), jnp.int32)
        evidence = self.decoder.evidence(self.params, row, hidden, zero)
        memory = Memory(line, None, zero, jnp.ones((), bool), zero, *evidence)
        return memory._replace(num_pending=self.drafter._cut_stage(self.params, row, memory)[0])

    def _collect(self, into: dict, key: tuple, memory: Memory, roots: list, weights: list) -> None:
        """Merges the lines that are equal up to their branch points."""
        size = len(weights[0])
        for root, start in enumerate(range(0, len(roots) * size, size)):
            merged: dict[tuple, float] = collections.defaultdict(float)
            for index, weight in enumerate(weights[root], start):
                merged[self._remember(root, memory.line, index, int(memory.num_pending[index]))] += weight
            into[key[0], root, *key[1:]] = [
                (Place(key[0], root, line, False), weight) for line, weight in merged.items()
            ]

    def _remember(self, root: int, lines: Line, index: int, num_pending: int) -> tuple:
        """What identifies a line; a representative of it is kept."""
        tokens, confidence = lines.tokens[index, : num_pending + 1], lines.confidence[index, num_pending]
        name = (root, tuple(tokens.tolist()), tuple(lines.candidates[index, num_pending].tolist()), float(confidence))
        if name not in self._lines:
            self._lines[name] = jax.tree.map(lambda leaf: leaf[index], lines), num_pending
        return name

    def _rows(self, previous: np.ndarray, root: np.ndarray) -> Row:
        zero = np.zeros(len(root), np.int32)
        values: dict[str, Any] = {  # on the host
            "tokens": np.stack([previous, root], axis=1).astype(np.int32),
            "num_tokens": zero + 2,
            "prompt_length": zero + 1,
            "max_new_tokens": zero + COUNT,
            "stop_ids": np.full((len(root), 1), -1, np.int32),
            "key": None,
            "num_rounds": zero + 1,
            "is_finished": zero > 0,
            "is_stopped": zero > 0,
            "is_failed": zero > 0,
            "options": jax.tree.map(lambda leaf: np.full(len(root), leaf), OPTIONS),
            "logprobs": None,
        }
        return Row(**values)

    def _fresh(self, place: Place) -> list[tuple[Place, float]]:
        """The lines that a round without one begins with."""
        if self.drafter.has_draft_stage:
            return self.staged[place.previous, place.root, place.is_first]
        entries = jax.tree.map(lambda leaf: leaf[place.root], self.positions)
        lines = jax.tree.map(lambda leaf: np.stack([leaf] * self.drafter.length, axis=1), entries)
        return [
            (place._replace(line=self._remember(place.root, lines, index, 0)), weight)
            for index, weight in enumerate(self.weights[place.root])
        ]

    def _judge(self, name: tuple) -> tuple[Line, int, np.ndarray, np.ndarray]:
        """A line, its pending tokens, and each position's `[G, C]` acceptance and `[G, V]` correction."""
        if name not in self._judged:
            names = [other for other in self._lines if other not in self._judged][:BATCH]
            padded = names + [names[0]] * (BATCH - len(names))
            lines = jax.tree.map(lambda *leaves: np.stack(leaves), *[self._lines[other][0] for other in padded])
            num_pending = np.array([self._lines[other][1] for other in padded], np.int32)
            rows = self._rows(np.zeros(BATCH), np.array([other[0] for other in padded]))
            active, accept, rest = jax.device_get(_judged(self.canonical, self.params, rows, lines, num_pending))
            for index, other in enumerate(names):
                line, pending = self._lines[other]
                self._judged[other] = line, pending, accept[index].astype(float), rest[index].astype(float)
                self.seen.add((pending, int(active[index].sum())))
        return self._judged[name]

    def _mixture(self, places: list[tuple[Place, float]], count: int) -> np.ndarray:
        return sum((weight * self._law(place, count) for place, weight in places), start=np.zeros(()))

    def _law(self, place: Place, count: int) -> np.ndarray:
        """`[V] * count` law of the next tokens; [] for none."""
        if count <= 0:
            return np.ones(())
        if (place, count) not in self._memo:
            if place.line is None:
                self._memo[place, count] = self._mixture(self._fresh(place), count)
            else:
                self._memo[place, count] = self._round(place, count)
        return self._memo[place, count]

    def _round(self, place: Place, count: int) -> np.ndarray:
        """The law from a round on: every outcome at every position of the line."""
        assert place.line is not None
        line, num_pending, accept, rest = self._judge(place.line)
        law, reach, emitted = np.zeros((self.size,) * count), 1.0, []

        def emit(token: int, weight: float, goes_on: bool) -> None:
            tokens = [*emitted, token]
            if weight > 0:
                previous = emitted[-1] if emitted else place.root
                ways = self.after[previous, token] if goes_on else [(Place(previous, token, None, False), 1.0)]
                law[tuple(tokens[:count])] += weight * self._mixture(ways, count - len(tokens))

        for index in range(num_pending + 1):
            missed = reach * (1.0 - accept[index].sum())
            for token in range(self.size):
                emit(token, missed * rest[index, token], False)
            if index == num_pending:
                for candidate, weight in zip(line.candidates[index], accept[index], strict=True):
                    emit(int(candidate), reach * weight, True)
            else:
                reach *= accept[index, 0]
                emitted.append(int(line.tokens[index]))
        return law


@functools.partial(jax.jit, static_argnums=0)
def _positions(drafter: BranchDrafter, params, places: jax.Array) -> Line:
    """The position of a line behind each token for each draw, from `[V, n, C]` draws."""
    nothing: list[Any] = [None] * len(Row._fields)
    row = Row(*nothing)._replace(options=OPTIONS)

    def position(token, drawn):
        logits = proposals.adjusted(drafter.target, drafter.draft, row, params["draft"]["table"][token])
        probs = sampling.distribution(sampling.temper_draft(row.options, logits))
        return drafter.position(logits, drawn, probs)

    return jax.vmap(jax.vmap(position, in_axes=(None, 0)))(jnp.arange(places.shape[0]), places)


@functools.partial(jax.jit, static_argnums=0)
def _judged(decoder: BranchDecoder, params, rows: Row, lines: Line, num_pending: jax.Array):
    """Which candidates are tried, and what the target makes of each position."""

    def judge(row, line, pending):
        contexts = {"target": cache.empty(decoder.target, 1)}
        output = decoder.verify_pending(params, State(row, contexts), line)
        active = decoder.drafter.tried(row, line, pending)
        branches = Branches(line, pending, active, jnp.zeros((), jnp.int32), line, None)
        test = functools.partial(decoder.test, row, branches)
        return active, *jax.vmap(test)(jnp.arange(decoder.length, dtype=jnp.int32), output.logits)

    return jax.vmap(judge)(rows, lines, num_pending)


def machine(
    size: int,
    length: int,
    max_branches: int,
    cut: hrad.Cut,
    fork: verify.Rule = verify.SEQUOIA,
    staged: bool = False,
    *,
    width: widths.Width = widths.ADAPTIVE,
    decoder: Callable[..., BranchDecoder] = BranchDecoder,
    drafter: Callable[..., BranchDrafter] = BranchDrafter,
):
    """A decoder of the tables of `size` tokens, taken apart."""
    half = drafter(TokenFeatLM(size), TableLM(size), length, max_branches, cut, fork, width, staged)
    return Machine(decoder(half), TARGETS[size], DRAFTS[size])


def assert_exact(machine: Machine) -> None:
    """Three tokens behind token 0 have the target's joint law."""
    law, wanted = machine.law(0), reference.joint_law(TARGETS[machine.size], 0, COUNT)
    np.testing.assert_allclose(law, wanted, rtol=0, atol=1e-6)
