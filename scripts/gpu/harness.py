"""What the sections of `bench.py` measure with: networks with random weights, the device's ceilings, and timers."""

import functools
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from drawn import drawn_tree
from shapes import Published, Shapes

from jaxspec import decode
from jaxspec.base import Params
from jaxspec.decode import Decoder, Sampling
from jaxspec.measure import timing
from jaxspec.networks import Transformer, TransformerConfig
from jaxspec.tree import TokenTree

DTYPE = "bfloat16"
FORMS: dict[str, dict[str, Any]] = {
    f"{layers}-{activations}": {"scan_layers": layers == "scan", "columns": activations == "columns"}
    for layers in ("scan", "unrolled")
    for activations in ("columns", "rows")
}

Line = dict[str, Any]
"""One line of a section's table: numbers and texts by column."""


class Skipped(Exception):
    """Why a section, or what is left of it, is not measured."""


class Network(NamedTuple):
    """A model and its parameters on the device."""

    model: Transformer
    params: Params

    @property
    def bytes_read(self) -> int:
        """Bytes of weights that one forward reads: all but an embedding table that is not the head's too."""
        total = sum(leaf.nbytes for leaf in jax.tree.leaves(self.params))
        return total - (self.params["embed_tokens"]["weight"].nbytes if "lm_head" in self.params else 0)


class Ceilings(NamedTuple):
    """What the device can do, measured.

    Attributes:
        read_gb_per_second: Of a sum over a large array.
        copy_gb_per_second: Of a large array read and written, both counted.
        tflop_per_second: Of a large matrix product.
    """

    read_gb_per_second: float
    copy_gb_per_second: float
    tflop_per_second: float

    def floor_ms(self, network: Network, n: int) -> float:
        """Milliseconds below which no forward over n tokens comes: its weights read once, or its products if longer."""
        bandwidth = max(self.read_gb_per_second, self.copy_gb_per_second)
        operations = 2 * network.bytes_read / jnp.dtype(DTYPE).itemsize * n
        return max(network.bytes_read / bandwidth / 1e6, operations / self.tflop_per_second / 1e9)


class Rounds(NamedTuple):
    """Rounds of one decoder.

    Attributes:
        round_ms: Milliseconds of one.
        tokens: Emitted a round.
        num_rounds: How many rounds `tokens` is the mean of.
        compile_s: Seconds of the first generation beyond those of the second.
    """

    round_ms: float
    tokens: float
    num_rounds: int
    compile_s: float


class Bench:
    """What the sections share, each thing made when it is first needed.

    Attributes:
        shapes: Sizes of everything.
        form: A key of `FORMS`, for the target.
        budget_s: Seconds after which no further line is begun.
        gguf: SmolLM2's file; None: the one in the user's cache.
        prompt: Random token ids.
        verify_ms: Milliseconds of the target's forwards by tokens in flight, as far as they were measured.
        draft_ms: Those of the draft.
    """

    def __init__(self, shapes: Shapes, form: str, budget_s: float, gguf: Path | None) -> None:
        self.shapes, self.form, self.budget_s, self.gguf = shapes, form, budget_s, gguf
        self.prompt = np.random.default_rng(0).integers(0, shapes.target.vocab_size, shapes.prompt_length).tolist()
        self.verify_ms: dict[int, float] = {}
        self.draft_ms: dict[int, float] = {}
        self._plain: dict[float, Rounds] = {}
        self._start = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def begin(self, what: str) -> None:
        """Says on stderr what is measured next.

        Raises:
            Skipped: The budget is used up.
        """
        if self.elapsed > self.budget_s:
            raise Skipped(f"the budget of {self.budget_s:.0f} s was used up before: {what}")
        print(f"[{self.elapsed:6.1f} s] {what}", file=sys.stderr, flush=True)

    @functools.cached_property
    def target(self) -> Network:
        """The target in its form."""
        self.begin(f"weights of the target, {self.form}")
        return initialised(self.shapes.target, 0, **FORMS[self.form])

    @functools.cached_property
    def draft(self) -> Network:
        """The draft, its few layers unrolled."""
        self.begin("weights of the draft")
        return initialised(self.shapes.draft, 1, columns=FORMS[self.form]["columns"])

    @functools.cached_property
    def ceilings(self) -> Ceilings:
        """Measured before the first line that is set against them."""
        self.begin("bandwidth and rate of the device")
        return measured_ceilings(self.shapes.stream_bytes, self.shapes.product_size)

    def plain(self, temperature: float) -> Rounds:
        """Plain decoding of the target, measured once."""
        if temperature not in self._plain:
            target = self.target
            self.begin(f"plain decoding at T={temperature:g}")
            decoder = decode.autoregressive(target.model)
            self._plain[temperature] = self.rounds(decoder, {"target": target.params}, temperature)
        return self._plain[temperature]

    def drawn(self, published: Published, shape: TokenTree, temperature: float) -> Rounds:
        """Rounds of a tree with acceptance drawn from a published vector."""
        decoder = drawn_tree(self.target.model, self.draft.model, shape, published.acceptance)
        return self.rounds(decoder, {"target": self.target.params, "draft": self.draft.params}, temperature)

    def rounds(self, decoder: Decoder, params: dict[str, Params], temperature: float) -> Rounds:
        """Time and tokens of rounds by the difference of a long and a short generation, each time with another key.

        The prompt, the call and the cut of the last round are in both, so they cancel out.
        """
        sampling = Sampling(temperature=temperature)

        def run(limit: int, seed: int) -> tuple[float, int]:
            key = jax.random.key(seed)
            start = time.perf_counter()
            generation = decode.generate(
                decoder, params, [self.prompt], key=key, max_new_tokens=limit, sampling=sampling, logprobs=False
            )
            return time.perf_counter() - start, int(generation.stats.rounds[0])

        short, long = self.shapes.num_tokens
        first_s, second_s = (run(short, 0)[0] for _ in range(2))
        times, count = [], 0
        for seed in range(1, self.shapes.repeats + 1):
            (short_s, short_rounds), (long_s, long_rounds) = run(short, seed), run(long, seed)
            times.append((long_s - short_s) / (long_rounds - short_rounds) * 1000)
            count += long_rounds - short_rounds
        tokens = (long - short) * self.shapes.repeats / count
        return Rounds(statistics.median(times), tokens, count, max(first_s - second_s, 0.0))

    def step(self, network: Network, n: int, steps: int, capacity: int | None = None) -> Line:
        """One forward over n tokens in flight, against its floor.

        Args:
            network: The network.
            n: Tokens in flight.
            steps: Forwards of one measurement.
            capacity: Slots of the context, half of them filled; None: the smallest of the shapes.
        """
        floor, repeats = self.ceilings.floor_ms(network, n), self.shapes.repeats
        capacity = capacity or min(self.shapes.verify_sizes)
        start = time.perf_counter()
        times = timing.step_times(network.model, network.params, (n,), capacity=capacity, repeats=repeats, steps=steps)
        compile_s = time.perf_counter() - start - times[n] * steps * (repeats + 1) / 1000
        return {
            "n": n,
            "ms": times[n],
            "floor_ms": floor,
            "over_floor": times[n] / floor,
            "compile_s": max(compile_s, 0.0),
        }


def initialised(config: TransformerConfig, seed: int, **options: Any) -> Network:
    """A network with random weights, drawn on the device."""
    model = Transformer(config, DTYPE, **options)
    return Network(model, jax.block_until_ready(model.init(jax.random.key(seed))))


def measured_ceilings(stream_bytes: int, product_size: int, steps: int = 8) -> Ceilings:
    """The best of several measurements of each rate, every one a compiled loop of `steps` passes.

    Args:
        stream_bytes: Bytes that are read and copied.
        product_size: Rows and columns of the product's factors.
        steps: Passes of one measurement.
    """
    first, second = jax.random.split(jax.random.key(3))
    stream = jax.random.bits(first, (stream_bytes // 4,), jnp.uint32)
    read_s = _best_seconds(lambda _: _read(stream, steps), None)
    copy_s = _best_seconds(lambda values: _copy(values, steps), stream)  # each consumes the one before
    shape = product_size, product_size
    matrix = (jax.random.normal(second, shape) / product_size**0.5).astype(DTYPE)
    product_s = _best_seconds(lambda _: _multiply(matrix, steps), None)
    return Ceilings(
        read_gb_per_second=stream_bytes * steps / read_s / 1e9,
        copy_gb_per_second=2 * stream_bytes * steps / copy_s / 1e9,
        tflop_per_second=2 * product_size**3 * steps / product_s / 1e12,
    )


def _best_seconds(run: Callable[[Any], jax.Array], value: Any, repeats: int = 5) -> float:
    """Seconds of the fastest of some runs, each handed what the one before returned."""
    seconds = []
    for _ in range(repeats + 1):  # the first one compiles
        start = time.perf_counter()
        value = jax.block_until_ready(run(value))
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


@jax.jit
def _read(stream: jax.Array, steps: int) -> jax.Array:
    """`[]` sum that takes a pass over the stream for each step, since each starts from the last one's sum."""

    def step(_: jax.Array, total: jax.Array) -> jax.Array:
        return jnp.bitwise_xor(stream, total).sum(dtype=jnp.uint32)

    return jax.lax.fori_loop(0, steps, step, jnp.zeros((), jnp.uint32))


@functools.partial(jax.jit, donate_argnums=0)
def _copy(stream: jax.Array, steps: int) -> jax.Array:
    """The stream, read and written in each step."""
    return jax.lax.fori_loop(0, steps, lambda _, values: values + 1, stream)


@jax.jit
def _multiply(matrix: jax.Array, steps: int) -> jax.Array:
    """A power of the matrix, one product after another."""
    return jax.lax.fori_loop(0, steps, lambda _, power: matrix @ power, matrix)
