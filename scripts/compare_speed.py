"""How fast plain decoding and whole rounds are here, against what bounds them.

    python scripts/compare_speed.py [--sections plain,torch,forwards,rounds,capacity] [--out speed.json]

Prints, for the default pair in float32:

    plain       plain decoding at capacity 512, in turns with reads of memory: against one pass over the weights
    torch       the same prompts through transformers + torch, in turns with ours (needs the extra `torch`)
    forwards    forwards of the target by their tokens, with its weights in blocks too (a CPU's default) and without
    rounds      whole rounds of trees of 8 and 32 nodes at T=0 and T=1, against their forwards measured alone
    capacity    plain and tree rounds at capacity 512, 2,048 and 8,192, with the memory of the contexts
"""

import argparse
import dataclasses
import functools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

from jaxspec import cache, decode, measure, pairs, plan, records
from jaxspec.decode import Sampling
from jaxspec.measure import timing
from jaxspec.networks import Transformer

PROMPTS = (
    "Explain why the sky is blue.",
    "Write a Python function that reverses a linked list.",
    "A train travels 60 miles in 1.5 hours. How fast is it going?",
    "Summarise the plot of Romeo and Juliet in three sentences.",
)

# An acceptance vector such as a trained draft of a small model has; it only shapes the trees that are timed.
ACCEPTANCE = (0.55, 0.12, 0.06, 0.04)

console = Console()


def plain(pair: pairs.Pair, repeats: int = 11) -> dict[str, float]:
    """Milliseconds of a plain token at capacity 512 and what two threads read meanwhile, in turns: medians."""
    assert isinstance(pair.target, Transformer)
    weights = sum(leaf.size for leaf in jax.tree.leaves(pair.target.shapes())) * 4
    decoder, prompt = decode.autoregressive(pair.target), pair.encode(PROMPTS[0])
    token = timing.timed_round(decoder, pair.params, prompt, key=jax.random.key(0))
    found = timing.in_turns({"token": token, "gigabyte": timed_gigabyte()}, repeats)
    tokens, floors = np.array(found["token"]), np.array(found["gigabyte"]) * weights / 1e9
    result = {
        "ms_per_token": float(np.median(tokens)),
        "floor_ms": float(np.median(floors)),
        "gb_per_second": 1000 / statistics.median(found["gigabyte"]),
        "best_gb_per_second": 1000 / min(found["gigabyte"]),
        "ratio": float(np.median(tokens / floors)),
    }
    console.print(
        f"plain decoding: {result['ms_per_token']:.1f} ms a token; {weights / 1e6:.0f} MB of weights take "
        f"{result['floor_ms']:.1f} ms to read at {result['gb_per_second']:.1f} GB/s (at best "
        f"{result['best_gb_per_second']:.1f}): {result['ratio']:.2f} x the floor (medians of {repeats} pairs)"
    )
    return result


def timed_gigabyte() -> timing.Timed:
    """1e9 bytes read from memory by two threads: what ten reads of 1 GiB take of it on average."""
    halves = np.split(np.ones(2**28, np.float32), 2)
    pool = ThreadPoolExecutor(len(halves))

    def once(reads: int = 10) -> float:
        start = time.perf_counter()
        for _ in range(reads):
            list(pool.map(lambda half: np.dot(half, half), halves))
        return (time.perf_counter() - start) * 1000 / reads * 1e9 / sum(half.nbytes for half in halves)

    return once


def torch(pair: pairs.Pair, num_tokens: int = 64, repeats: int = 3) -> dict[str, float]:
    """Plain greedy decoding here and in transformers + torch (two threads), prompt by prompt in turns."""
    import torch as pytorch  # pyright: ignore[reportMissingImports] (the extra `torch`)
    from transformers import AutoModelForCausalLM

    pytorch.set_num_threads(2)
    file = pairs.fetch()
    model = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype=pytorch.float32).eval()
    decoder = decode.autoregressive(pair.target)
    ratios, ours, theirs = [], [], []
    for repeat in range(repeats + 1):
        for text in PROMPTS:
            prompt = pair.encode(text)
            start = time.perf_counter()
            mine = decode.generate(
                decoder, pair.params, [prompt], key=jax.random.key(0), max_new_tokens=num_tokens, logprobs=False
            )
            middle = time.perf_counter()
            with pytorch.inference_mode():
                other = model.generate(
                    pytorch.tensor([prompt]), do_sample=False, min_new_tokens=num_tokens, max_new_tokens=num_tokens
                )
            end = time.perf_counter()
            if repeat:
                ours.append((middle - start) / mine.lengths[0] * 1000)
                theirs.append((end - middle) / (other.shape[1] - len(prompt)) * 1000)
                ratios.append(theirs[-1] / ours[-1])
    result = {
        "ms_per_token": statistics.median(ours),
        "torch_ms_per_token": statistics.median(theirs),
        "speedup": statistics.median(ratios),
    }
    console.print(
        f"plain decoding, prompts included: {result['ms_per_token']:.1f} ms a token here, "
        f"{result['torch_ms_per_token']:.1f} in transformers + torch {pytorch.__version__}: "
        f"{result['speedup']:.2f} x (median of {len(ratios)} pairs, {min(ratios):.2f} to {max(ratios):.2f})"
    )
    return result


def forwards(pair: pairs.Pair, repeats: int = 15) -> dict[str, dict[int, float]]:
    """Milliseconds of a forward with blocks and without, in turns."""
    if not getattr(pair.target, "blocks", False):
        raise SystemExit("The section forwards is for a target with blocks, which a pair has on a CPU in float32.")
    with_blocks, params = pair.target, pair.params["target"]
    models = {"blocks": (with_blocks, params), "without": without_blocks(with_blocks, params)}
    timed = {
        (name, n): timing.timed_step(model, params, n)
        for name, (model, params) in models.items()
        for n in measure.VERIFY_SIZES
    }
    times = {call: statistics.median(found) for call, found in timing.in_turns(timed, repeats).items()}
    table = Table("tokens", *map(str, measure.VERIFY_SIZES), title="forwards of the target, ms")
    result = {name: {n: times[name, n] for n in measure.VERIFY_SIZES} for name in models}
    for name, row in result.items():
        table.add_row(name, *(f"{value:.1f}" for value in row.values()))
    console.print(table)
    return result


def without_blocks(model: Any, params: Any) -> tuple[Any, Any]:
    """The same network in one form for every number of tokens; its arrays are those of the other."""
    return dataclasses.replace(model, blocks=False), model.unstack(params)


def rounds(pair: pairs.Pair) -> list[dict[str, float]]:
    """Whole rounds against the sum of their forwards, each measured alone in a compiled loop."""
    table = Table("nodes", "draft steps", "T", "draft ms", "verify ms", "parts", "round", "ratio", title="rounds, ms")
    results = []
    prompt = pair.encode(PROMPTS[0])
    for size in (8, 32):
        shape = plan.optimal_tree(ACCEPTANCE, size, 6)
        widths = [2, *shape.level_widths[1:]]  # the root's step carries the catch-up token
        for temperature in (0.0, 1.0):
            decoder = decode.sequoia(pair.target, pair.draft, shape)
            samples = []
            for _ in range(3):  # parts and whole in turns
                steps = timing.step_times(pair.draft, pair.params["draft"], sorted(set(widths)), repeats=5)
                verify = timing.step_times(pair.target, pair.params["target"], (size,), repeats=5)[size]
                whole = timing.round_time(
                    decoder,
                    pair.params,
                    prompt,
                    key=jax.random.key(0),
                    num_tokens=(8, 40),
                    sampling=Sampling(temperature=temperature),
                    repeats=3,
                )
                draft = sum(steps[width] for width in widths)
                samples.append((whole / (draft + verify), draft, verify, whole))
            ratio, draft, verify, whole = sorted(samples)[1]
            results.append(
                {
                    "nodes": size,
                    "temperature": temperature,
                    "draft_ms": draft,
                    "verify_ms": verify,
                    "round_ms": whole,
                    "ratio": ratio,
                }
            )
            table.add_row(
                *(str(value) for value in (size, len(widths), temperature)),
                *(f"{value:.1f}" for value in (draft, verify, draft + verify, whole)),
                f"{ratio:.2f}",
            )
    console.print(table)
    return results


def capacity(pair: pairs.Pair) -> list[dict[str, float]]:
    """Forwards of 1 and 8 tokens, and the contexts' memory, as the capacity grows."""
    table = Table("capacity", "1 token, ms", "8 tokens, ms", "draft 1 token, ms", "contexts, MB", title="capacity")
    results = []
    for slots in (512, 2048, 8192):
        target = timing.step_times(pair.target, pair.params["target"], (1, 8), capacity=slots)
        draft = timing.step_times(pair.draft, pair.params["draft"], (1,), capacity=slots)
        shapes = [jax.eval_shape(functools.partial(cache.empty, model, slots)) for model in (pair.target, pair.draft)]
        memory = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes)) / 1e6
        results.append({"slots": slots, "ms_1": target[1], "ms_8": target[8], "draft_ms": draft[1], "mb": memory})
        table.add_row(f"{slots:,}", *(f"{value:.1f}" for value in (target[1], target[8], draft[1], memory)))
    console.print(table)
    return results


SECTIONS = {"plain": plain, "torch": torch, "forwards": forwards, "rounds": rounds, "capacity": capacity}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="plain,forwards,rounds,capacity", help="default: all but torch")
    parser.add_argument("--draft-layers", type=int, help="time an early exit of so many layers as the draft")
    parser.add_argument("--out", help="also write the numbers to this JSON file")
    args = parser.parse_args()
    wanted = args.sections.split(",")
    if unknown := [name for name in wanted if name not in SECTIONS]:
        parser.error(f"--sections names {', '.join(unknown)}; there are {', '.join(SECTIONS)}.")
    pair = pairs.load(draft_layers=args.draft_layers)
    console.print(f"{records.machine_description()}; {records.library_versions()}")
    results: dict[str, Any] = {}
    for name in wanted:
        results[name] = SECTIONS[name](pair)
        if args.out:  # behind every section: all of them take ten minutes
            records.save_result(args.out, vars(args), **results)


if __name__ == "__main__":
    main()
