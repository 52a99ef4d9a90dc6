"""The products of one forward, without attention, in several forms, by the number of tokens: milliseconds.

    python scripts/product_forms.py [--pair smollm2-135m] [--tokens 1,2,3,4,5,6,8,12,16,32] [--out products.json]

Random weights in the shapes of the pair's target, its head included, in one piece of memory for each form, as a CPU has
a pair's parameters. The forms take turns, so that a slow moment of the machine meets all of them.

    library     what the library runs on a CPU (networks.weights.products): blocks up to 5 tokens, then filled columns
    columns     W [out, in] times x [in, n]
    rows        x [n, in] times W [in, out]
    blocks      x [n, in] times each of W's blocks [in, 64], as one batch
    row blocks  W's blocks [64, in] times x, as one batch: the same for one token, without another storage

The head is in columns in all of them.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from rich.console import Console
from rich.table import Table

from jaxspec import networks, pairs, records
from jaxspec.measure import timing
from jaxspec.networks.weights import products
from jaxspec.networks.weights.products import BLOCK


class Form(NamedTuple):
    """How a product is stored and computed.

    Attributes:
        store: What becomes of a weight `[out, in]`: one array, or several.
        multiply: The product of what is stored with `[n, in]` rows or `[in, n]` columns, which it gives again.
        features: The axis that the features lie on: 1 in rows, 0 in columns.
    """

    store: Callable[[jax.Array], Any]
    multiply: Callable[[Any, jax.Array], jax.Array]
    features: int


def by_blocks(stored: jax.Array, x: jax.Array) -> jax.Array:
    many = jnp.broadcast_to(x, (stored.shape[0], *x.shape))
    product = jax.lax.dot_general(many, stored, (((2,), (1,)), ((0,), (0,))))
    return product.swapaxes(0, 1).reshape(x.shape[0], -1)


def by_row_blocks(weight: jax.Array, x: jax.Array) -> jax.Array:
    stored = weight.reshape(-1, BLOCK, weight.shape[1])
    many = jnp.broadcast_to(x, (stored.shape[0], *x.shape))
    return jax.lax.dot_general(stored, many, (((2,), (1,)), ((0,), (0,)))).reshape(-1, x.shape[1])


FORMS = {
    "library": Form(
        lambda weight: (weight, products.blocks_of(weight)), lambda stored, x: products.multiply(*stored, x), 1
    ),
    "columns": Form(lambda weight: weight, lambda stored, x: stored @ x, 0),
    "rows": Form(lambda weight: weight.T, lambda stored, x: x @ stored, 1),
    "blocks": Form(products.blocks_of, by_blocks, 1),
    "row blocks": Form(lambda weight: weight, by_row_blocks, 0),
}


def shapes_of(pair: pairs.Pair) -> tuple[int, dict[str, tuple[int, int]], tuple[int, int]]:
    """Layers of the target, the `[out, in]` of each product of one, and of the head."""
    config: Any = getattr(pair.target, "config", None)
    if config is None:
        raise SystemExit(f"The target of {pair.name} is no plain transformer: name another --pair.")
    width, inner = config.hidden_size, config.intermediate_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = {"q": (queries, width), "k": (keys, width), "v": (keys, width), "o": (width, queries)}
    layer |= {"gate": (inner, width), "up": (inner, width), "down": (width, inner)}
    if wrong := [name for name, (rows, _) in layer.items() if rows % BLOCK]:
        raise SystemExit(f"The products {', '.join(wrong)} of {pair.name} are not made of blocks of {BLOCK} rows.")
    return config.num_layers, layer, (config.vocab_size, width)


def forward(form: Form, layers: list[dict[str, Any]], head: jax.Array, x: jax.Array) -> jax.Array:
    """A number that needs every product. What stands for attention only joins queries, keys and values."""
    for weights in layers:
        q, k, v = (form.multiply(weights[name], x) for name in "qkv")
        joined = q + jnp.concatenate([k + v] * (q.shape[form.features] // k.shape[form.features]), form.features)
        x = x + form.multiply(weights["o"], jnp.tanh(joined))
        gate = form.multiply(weights["gate"], x)
        x = x + form.multiply(weights["down"], gate * form.multiply(weights["up"], x) / (1 + jnp.exp(-gate)))
    if form.features == 1:
        x = jax.lax.optimization_barrier(x.T)
    return (head @ x).sum()


def measure(pair: pairs.Pair, tokens: list[int], repeats: int) -> dict[str, dict[int, float]]:
    """Milliseconds by form and number of tokens, medians."""
    num_layers, shapes, head_shape = shapes_of(pair)
    key = jax.random.key(0)
    head = networks.packed(jax.random.normal(key, head_shape))
    timed: dict[tuple[str, int], timing.Timed] = {}
    for name, form in FORMS.items():
        drawn = [
            {
                what: jax.jit(form.store)(jax.random.normal(jax.random.fold_in(key, index), shape) / shape[1] ** 0.5)
                for what, shape in shapes.items()
            }
            for index in range(num_layers)
        ]
        layers = networks.packed(drawn)
        run = jax.jit(lambda layers, head, x, form=form: forward(form, layers, head, x))
        for n in tokens:
            shape = (n, head_shape[1]) if form.features == 1 else (head_shape[1], n)
            timed[name, n] = once(run, layers, head, jax.random.normal(key, shape))
    times = timing.in_turns(timed, repeats)
    return {name: {n: statistics.median(times[name, n]) for n in tokens} for name in FORMS}


def once(run: Callable[..., jax.Array], *arguments: Any) -> timing.Timed:
    """One call, as `timing.in_turns` takes it."""

    def timed() -> float:
        start = time.perf_counter()
        run(*arguments).block_until_ready()
        return (time.perf_counter() - start) * 1000

    return timed


def main() -> None:
    """Prints the table and writes the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default=pairs.DEFAULT)
    parser.add_argument("--tokens", default="1,2,3,4,5,6,8,12,16,32", help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=15, help="default %(default)s")
    parser.add_argument("--out", help="JSON to write")
    options = parser.parse_args()
    tokens = [int(word) for word in options.tokens.split(",")]
    found = measure(pairs.load(options.pair), tokens, options.repeats)
    table = Table("form", *map(str, tokens), title="milliseconds of one forward's products, by tokens")
    for name, times in found.items():
        table.add_row(name, *(f"{times[n]:.1f}" for n in tokens))
    Console().print(table)
    if options.out:
        records.save_result(options.out, vars(options), milliseconds=found)


if __name__ == "__main__":
    main()
