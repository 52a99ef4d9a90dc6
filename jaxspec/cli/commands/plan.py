"""The command `jaxspec plan`: a profile becomes a method with its setting."""

import argparse
from typing import Any

from jaxspec import plan
from jaxspec.catalogue import ranking
from jaxspec.catalogue.choosing import read_profile
from jaxspec.cli import options, values
from jaxspec.cli.show import tables, terminal

_TABLE_SIZES = (2, 4, 8, 16, 32, 64)


_TABLE_DEPTHS = 8


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "plan",
        "Choose the method and tree that a profile makes the fastest, and show the speedups of others.",
        "example: jaxspec plan profile.json --max-size 32",
    )
    parser.add_argument("profile", metavar="PROFILE", help="a profile from jaxspec measure")
    parser.add_argument(
        "--max-size",
        type=values.integer(1),
        metavar="N",
        help=f"most nodes, the root counted (default: the largest measured size, at most {plan.DEFAULT_MAX_SIZE})",
    )
    parser.add_argument(
        "--max-depth",
        type=values.integer(1),
        metavar="N",
        help=f"largest depth, in edges (default {plan.DEFAULT_MAX_DEPTH}, and as deep as was measured)",
    )


def run(args: argparse.Namespace) -> int:
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
        terminal.print_json(
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
        tables.print_plan(chosen, profile, sizes, depths, speedups)
        tables.print_ranking(ranked)
    return 0
