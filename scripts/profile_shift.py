"""What a tree is worth where it was not planned: planned on one task or temperature, used on another.

    python scripts/profile_shift.py --prompts gsm8k.jsonl humaneval.jsonl --temperatures 0 1 --out shift.json

Each file at each temperature is a condition. Its acceptance by depth and rank is measured on the first half of its
prompts, and the best tree of each size is planned from that; then every condition's tree decodes the second half of
every condition's prompts. Printed are tokens a round; what the tree expected of its own condition stands in brackets.
Nothing is timed.
"""

import argparse
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.table import Table

from jaxspec import decode, measure, pairs, plan, records
from jaxspec.base import Progress
from jaxspec.catalogue import prompts
from jaxspec.cli.show import terminal
from jaxspec.cli.values import integer
from jaxspec.tree import TokenTree, comb


class Condition(NamedTuple):
    """Prompts at a temperature.

    Attributes:
        name: Of the file and the temperature.
        measured: Encoded prompts that its acceptance is measured on.
        used: Other prompts of the same kind, which the trees decode.
        temperature: Of target and draft.
    """

    name: str
    measured: list[list[int]]
    used: list[list[int]]
    temperature: float


def conditions(pair: pairs.Pair, args: argparse.Namespace) -> list[Condition]:
    """Every file at every temperature.

    Raises:
        ValueError: A file with fewer than two prompts.
    """
    found = []
    for file in args.prompts:
        encoded = [prompts.encode(pair, one, args.prompt_tokens) for one in prompts.read(file, args.num_prompts)]
        half = len(encoded) // 2
        if not half:
            raise ValueError(
                f"{file} has {len(encoded)} prompt: one half is measured and the other used, give 2 or more."
            )
        for temperature in args.temperatures:
            found.append(
                Condition(f"{Path(file).stem}, T={temperature:g}", encoded[:half], encoded[half:], temperature)
            )
    return found


def acceptance(
    pair: pairs.Pair, tree: TokenTree, encoded: Sequence[Sequence[int]], temperature: float, args: argparse.Namespace
) -> measure.Acceptance:
    """What a tree comes through on some prompts."""
    return measure.acceptance(
        decode.sequoia(pair.target, pair.draft, tree),
        pair.params_at(temperature),
        encoded,
        key=jax.random.key(args.seed),
        max_new_tokens=args.max_new_tokens,
        sampling=decode.Sampling(temperature),
        stop_ids=pair.stop_ids,
        batch_size=args.batch_size,
    )


def shift(pair: pairs.Pair, args: argparse.Namespace, progress: Progress) -> list[dict[str, Any]]:
    """One record for each size, condition of planning and condition of use."""
    chosen = conditions(pair, args)
    measured = {}
    for number, one in enumerate(chosen):
        found = acceptance(pair, comb(args.width, args.depth), one.measured, one.temperature, args)
        measured[one.name] = found.acceptance[found.counts > 0]
        progress("profiles", number + 1, len(chosen))

    @functools.cache  # conditions may plan the same tree
    def tokens_per_round(tree: TokenTree, number: int) -> float:
        return acceptance(pair, tree, chosen[number].used, chosen[number].temperature, args).tokens_per_round

    records = []
    for place, size in enumerate(args.sizes):
        trees = {name: plan.optimal_tree(np.minimum(found, 1.0), size) for name, found in measured.items()}
        for number, used in enumerate(chosen):
            for planned, tree in trees.items():
                records.append(
                    {
                        "size": size,
                        "planned_on": planned,
                        "used_on": used.name,
                        "tokens_per_round": tokens_per_round(tree, number),
                        "expected": plan.expected_tokens(tree, measured[used.name]),
                        "tree": tree.parents,
                        "acceptance": measured[planned].tolist(),
                    }
                )
            progress("trees", place * len(chosen) + number + 1, len(args.sizes) * len(chosen))
    return records


def show(records: Sequence[dict[str, Any]]) -> None:
    """A table for each size: a row for each condition of use, a column for each condition of planning."""
    console = terminal.results_console()
    for size in dict.fromkeys(record["size"] for record in records):
        own = [record for record in records if record["size"] == size]
        names = list(dict.fromkeys(record["planned_on"] for record in own))
        table = Table("used on", *names, title=f"tokens a round, {size} nodes, by where the tree was planned")
        for used in names:
            row = {record["planned_on"]: record for record in own if record["used_on"] == used}
            table.add_row(
                used, *(f"{row[name]['tokens_per_round']:.3f} ({row[name]['expected']:.3f})" for name in names)
            )
        console.print(table)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    count = integer(1)
    parser.add_argument("--prompts", nargs="+", required=True, metavar="FILE", help="JSON lines, one file a task")
    parser.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 1.0], metavar="F")
    parser.add_argument("--sizes", nargs="+", type=count, default=[4, 16], metavar="N", help="nodes of the trees")
    parser.add_argument("--num-prompts", type=count, default=40, metavar="N", help="of each file (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=count, default=512, metavar="N", help="default %(default)s")
    parser.add_argument("--max-new-tokens", type=count, default=96, metavar="N", help="default %(default)s")
    parser.add_argument("--width", type=count, default=4, metavar="N", help="children measured (default %(default)s)")
    parser.add_argument("--depth", type=count, default=7, metavar="N", help="depths measured (default %(default)s)")
    parser.add_argument("--batch-size", type=count, default=20, metavar="N", help="default %(default)s")
    parser.add_argument("--pair", default=pairs.DEFAULT, metavar="P", help="default %(default)s")
    parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help="default %(default)s")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    pair = pairs.load(args.pair)
    with terminal.progress() as progress:
        found = shift(pair, args, progress)
    show(found)
    if args.out:
        records.save_result(args.out, vars(args), trees=found)


if __name__ == "__main__":
    main()
