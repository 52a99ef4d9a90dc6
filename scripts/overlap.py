"""What overlap of draft and target gives: simulated from logged rounds, beside measured runs on two virtual devices.

    python scripts/overlap.py [--pair PAIR] [--length 4] [--max-branches 2] [--epsilon 0.4] [--one-thread]
                              [--new-tokens 48] [--temperature 0] [--c 4,10] [--out overlap.json]

For plain decoding, a chain, PEARL and SpecBranch, with and without the draft stage (by H-RAD where the pair has a head
of it, else by confidence), ms a token and speedup over plain decoding:

    measured    fused on one device; split on two virtual CPU devices, which share the cores. With --one-thread each of
                them computes with one thread, so that on two cores or more they are like two devices of their own; it
                binds Eigen's products only: where jax takes YNNPACK's (0.10 on an AMD EPYC does) nothing changes
    simulated   from this machine's step times: on one device, to compare with fused, and on two, to compare with split
    flat        from a GPU-like table whose target step takes c draft steps up to 64 tokens, on two devices

The simulation knows forwards only: what measured rounds take beyond it is the rest of a round.
"""

import argparse
import os
import statistics
import time
from typing import Any

PROMPTS = (
    "Explain why the sky is blue.",
    "Write a Python function that reverses a linked list.",
    "A train travels 60 miles in 1.5 hours. How fast is it going?",
    "Summarise the plot of Romeo and Juliet in three sentences.",
)


def two_devices(one_thread: bool) -> None:
    """Has JAX, which must not have started, begin with two virtual CPU devices."""
    flags = [os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=2"]
    flags += ["--xla_cpu_multi_thread_eigen=false"] if one_thread else []
    os.environ.update(XLA_FLAGS=" ".join(flags), JAX_PLATFORMS="cpu")


def decoders_of(pair: Any, args: argparse.Namespace) -> dict[str, Any]:
    """The compared methods by name."""
    from jaxspec import decode

    def branches(has_draft_stage: bool) -> Any:
        return decode.specbranch(
            pair.target,
            pair.draft,
            pair.hrad,
            args.length,
            args.max_branches,
            args.epsilon,
            has_draft_stage=has_draft_stage,
        )

    return {
        "plain": decode.autoregressive(pair.target),
        "chain": decode.speculative(pair.target, pair.draft, args.length),
        "pearl": decode.pearl(pair.target, pair.draft, args.length),
        "specbranch": branches(False),
        "specbranch, draft stage": branches(True),
    }


def measured(decoder: Any, pair: Any, prompts: list[list[int]], args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds of a token, prompts not included, by placement: long generations less those of one token."""
    import jax

    from jaxspec import decode
    from jaxspec.decode.branches.decoder import BranchDecoder
    from jaxspec.decode.placement.split import generate_split, place

    first, second = jax.devices()[:2]
    runs: dict[str, Any] = {"fused": (decode.generate, pair.params, {})}
    if isinstance(decoder, BranchDecoder):
        devices = {"target_device": second, "draft_device": first}
        runs["split"] = (generate_split, place(decoder, pair.params, **devices), devices)
    sampling = decode.Sampling(args.temperature)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(args.repeats + 1):  # the first compiles
        for name, (generate, params, devices) in runs.items():
            total = 0.0
            for index, prompt in enumerate(prompts):
                for count, sign in ((1, -1), (1 + args.new_tokens, 1)):
                    start = time.perf_counter()
                    generate(
                        decoder,
                        params,
                        [prompt],
                        key=jax.random.key(index),
                        max_new_tokens=count,
                        sampling=sampling,
                        logprobs=False,
                        first_capacity=args.capacity,
                        **devices,
                    )
                    total += sign * (time.perf_counter() - start)
            if repeat:
                seconds[name].append(total)
    tokens = len(prompts) * args.new_tokens
    return {name: statistics.median(values) / tokens * 1000 for name, values in seconds.items()}


def simulated(rounds: list[Any], times: Any, flat: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of a token by placement, and the speedups of the flat tables on two devices."""
    from jaxspec import simulate

    result = {
        f"simulated_{number}": simulate.simulate(rounds, times, num_devices=number).ms_per_token for number in (1, 2)
    }
    for c, table in flat.items():
        result[f"flat_{c}"] = simulate.simulate(rounds, table, num_devices=2).speedup
    return result


def report(args: argparse.Namespace) -> dict[str, Any]:
    """Everything measured and simulated, printed as a table."""
    import jax
    from rich.console import Console
    from rich.table import Table

    from jaxspec import decode, pairs, simulate
    from jaxspec.measure import timing
    from jaxspec.study import bench

    pair = pairs.load(args.pair, draft_layers=args.draft_layers)
    prompts = [pair.encode(text) for text in PROMPTS[: args.num_prompts]]
    sizes = sorted({1, args.length, args.length + 1})
    widths = sorted({1, 2, args.max_branches, args.length + 1})
    verify_ms = timing.step_times(pair.target, pair.params["target"], sizes, capacity=args.capacity)
    draft_ms = timing.step_times(pair.draft, pair.params["draft"], widths, capacity=args.capacity)
    times = simulate.table_times(verify_ms, draft_ms)
    flat = {c: simulate.flat_times(1.0, float(c)) for c in args.c.split(",")}
    results = {}
    for name, decoder in decoders_of(pair, args).items():
        log = simulate.log_rounds(
            decoder,
            pair.params,
            prompts,
            key=jax.random.key(0),
            max_new_tokens=1 + args.new_tokens,
            sampling=decode.Sampling(args.temperature),
        )
        rounds = [entry for row in log.rounds for entry in row]
        results[name] = {
            "tokens_per_round": sum(entry.emitted for entry in rounds) / len(rounds),
            **simulated(rounds, times, flat),
            **measured(decoder, pair, prompts, args),
        }
    columns = list(results["pearl"])
    table = Table("method", *columns, title=f"{pair.name}: ms a token; flat: speedup")
    for name, entry in results.items():
        table.add_row(name, *(f"{entry[column]:.2f}" if column in entry else "" for column in columns))
    Console().print(table)
    Console().print(f"target ms {verify_ms}\ndraft ms {draft_ms}")
    environment = bench.environment("float32", f"overlap.py {vars(args)}")
    return {"environment": environment, "verify_ms": verify_ms, "draft_ms": draft_ms, "methods": results}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", default="smollm2-135m", help="name or folder (default %(default)s)")
    parser.add_argument("--draft-layers", type=int, help="an early exit of so many layers as the draft")
    parser.add_argument("--length", type=int, default=4, help="tokens of a branch or chain (default %(default)s)")
    parser.add_argument("--max-branches", type=int, default=2, help="default %(default)s")
    parser.add_argument("--epsilon", type=float, default=0.4, help="default %(default)s")
    parser.add_argument("--temperature", type=float, default=0.0, help="default %(default)s")
    parser.add_argument("--new-tokens", type=int, default=48, help="of each prompt (default %(default)s)")
    parser.add_argument("--num-prompts", type=int, default=len(PROMPTS), help="default %(default)s")
    parser.add_argument("--repeats", type=int, default=3, help="default %(default)s")
    parser.add_argument("--capacity", type=int, default=256, help="slots of the contexts (default %(default)s)")
    parser.add_argument("--c", default="4,10", help="target step / draft step of the flat tables (default %(default)s)")
    parser.add_argument("--one-thread", action="store_true", help="one thread for each device")
    parser.add_argument("--out", help="also write the numbers to this JSON file")
    args = parser.parse_args()
    two_devices(args.one_thread)
    from jaxspec import records

    results = report(args)
    if args.out:
        records.write(args.out, results, indent=2)


if __name__ == "__main__":
    main()
