"""The commands `jaxspec measure` and `plan`: a pair becomes a profile, a profile becomes a method with its setting."""

import argparse
import dataclasses
from typing import Any

from jaxspec import plan, prompts, ranking, reports
from jaxspec.arguments import (
    add_command,
    add_models,
    add_prompt_tokens,
    add_prompts,
    add_sampling,
    integer,
    load_pair,
    read_prompts,
    refuse_filters,
    writable,
)
from jaxspec.methods import read_profile

_TABLE_SIZES = (2, 4, 8, 16, 32, 64)
_TABLE_DEPTHS = 8


def register(commands: Any) -> None:
    _add_measure(commands)
    _add_plan(commands)


def _add_measure(commands: Any) -> None:
    parser = add_command(
        commands,
        _measure,
        "measure",
        "Measure a pair's acceptance by child rank and depth, its draft's confidence and step times into a profile.",
        "--json prints the profile as it is written.\n\n"
        "example: jaxspec measure --prompts gsm8k.jsonl --num-prompts 50 --out profile.json",
    )
    add_prompts(parser, 200)
    add_prompt_tokens(parser)
    count = integer(1)
    parser.add_argument("--width", type=count, default=8, metavar="N", help="children of a node (default %(default)s)")
    parser.add_argument("--depth", type=count, default=5, metavar="N", help="depths measured (default %(default)s)")
    parser.add_argument("--out", required=True, metavar="FILE", help="where the profile is written, as JSON")
    add_models(parser)
    add_sampling(parser, 128)


def _measure(args: argparse.Namespace) -> int:
    refuse_filters(args)
    out = writable("--out", args.out)
    chosen = read_prompts(args)
    pair = load_pair(args)
    encoded = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in chosen]

    import jax

    from jaxspec import measure

    with reports.progress() as progress:
        progress("acceptance", 0, len(encoded))
        profile = measure.profile(
            pair.target,
            pair.draft,
            pair.params,
            encoded,
            key=jax.random.key(args.seed),
            width=args.width,
            depth=args.depth,
            temperature=args.temperature,
            draft_temperature=args.draft_temperature,
            max_new_tokens=args.max_new_tokens,
            stop_ids=pair.stop_ids,
            names=(pair.sources["target"], pair.sources["draft"]),
            progress=progress,
        )
    asked = {name: getattr(args, name) for name in ("prompts", "prompt_tokens", "seed", "dtype")} | {"pair": pair.name}
    profile = dataclasses.replace(profile, protocol={**profile.protocol, **asked})
    profile.save(out)
    if args.json:
        print(out.read_text(encoding="utf-8"), end="")
    else:
        reports.print_profile(profile, args.out)
    return 0


def _add_plan(commands: Any) -> None:
    parser = add_command(
        commands,
        _plan,
        "plan",
        "Choose the method and tree that a profile makes the fastest, and show the speedups of others.",
        "example: jaxspec plan profile.json --max-size 32",
    )
    parser.add_argument("profile", metavar="PROFILE", help="a profile from jaxspec measure")
    parser.add_argument(
        "--max-size",
        type=integer(1),
        metavar="N",
        help=f"most nodes, the root counted (default: the largest measured size, at most {plan.DEFAULT_MAX_SIZE})",
    )
    parser.add_argument(
        "--max-depth",
        type=integer(1),
        metavar="N",
        help=f"largest depth, in edges (default {plan.DEFAULT_MAX_DEPTH}, and as deep as was measured)",
    )


def _plan(args: argparse.Namespace) -> int:
    profile = read_profile(args.profile)
    chosen = plan.best(profile, args.max_size, args.max_depth)
    largest = args.max_size or (max(profile.verify_ms) if len(profile.verify_ms) > 1 else plan.DEFAULT_MAX_SIZE)
    sizes = [size for size in _TABLE_SIZES if size <= largest]
    rows = len(profile.acceptance) if isinstance(profile.acceptance[0], tuple) else _TABLE_DEPTHS
    depths = list(range(1, min(_TABLE_DEPTHS, rows, args.max_depth or _TABLE_DEPTHS) + 1))
    speedups: Any = plan.table(profile, sizes, depths) if sizes else []
    ranked = ranking.rank(profile)
    if args.json:
        table = {"sizes": sizes, "depths": depths, "speedups": [list(row) for row in speedups]}
        reports.print_json(
            {
                "method": chosen.method,
                "tree": chosen.tree.parents,
                "expected_tokens": chosen.expected_tokens,
                "expected_speedup": chosen.expected_speedup,
                "table": table,
                "methods": [one._asdict() | {"tree": one.tree and one.tree.parents} for one in ranked],
            }
        )
    else:
        reports.print_plan(chosen, profile, sizes, depths, speedups)
        reports.print_ranking(ranked)
    return 0
