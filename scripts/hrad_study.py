"""How H-RAD depends on the number of feature layers, on how many rounds there are, and on the task.

    python scripts/hrad_study.py --prompts gsm8k.jsonl humaneval.jsonl --features 1 2 4 8 --out study.json

PEARL's rounds are logged once, with the most layers of features; every head reads the last K of them. Heads of each K,
and of halves of the rounds, are scored on held-out prompts of all files together; then a head of each file alone is
scored on the others, beside its own held-out prompts. `--rounds FILE` keeps the logged rounds, or reads them
where the file exists. Nothing is timed.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from jaxspec import decode, pairs, records
from jaxspec.base import Progress
from jaxspec.catalogue import prompts
from jaxspec.cli.show import terminal
from jaxspec.cli.values import integer
from jaxspec.networks import with_features
from jaxspec.train.hrad import collecting
from jaxspec.train.hrad.collecting import Rounds
from jaxspec.train.hrad.evaluation import CUTS, Evaluation
from jaxspec.train.hrad.fitting import split_by_prompt
from jaxspec.train.hrad.trained import Collected, train

SHOWN = ("hrad", "lengths", "regression", "confidence", "confidence_balanced", "majority")


def log(pair: pairs.Pair, args: argparse.Namespace, progress: Progress) -> tuple[Rounds, np.ndarray]:
    """The rounds of all files, and `[n]` the file of each."""
    encoded, files = [], []
    for number, file in enumerate(args.prompts):
        chosen = prompts.read(file, args.num_prompts)
        encoded += [prompts.encode(pair, one, args.prompt_tokens) for one in chosen]
        files += [number] * len(chosen)
    names = ("num_prompts", "prompt_tokens", "max_new_tokens", "length", "temperature", "seed")
    made_with = {"pair": pair.name, "prompts": [Path(file).name for file in args.prompts]}
    made_with |= {name: getattr(args, name) for name in names}
    layers = max(args.features)
    if args.rounds is not None and args.rounds.exists():
        rounds = collecting.load(args.rounds, made_with, layers)
    else:
        rounds = collecting.collect(
            collecting.logging_decoder(with_features(pair.target, layers), pair.draft, args.length),
            pair.params_at(args.temperature),
            encoded,
            key=jax.random.key(args.seed),
            max_new_tokens=args.max_new_tokens,
            sampling=decode.Sampling(args.temperature),
            stop_ids=pair.stop_ids,
            batch_size=args.batch_size,
            progress=progress,
        )
        if args.rounds is not None:
            collecting.save(args.rounds, rounds, made_with)
    return rounds, np.asarray(files)[rounds.prompts]


def read(pair: pairs.Pair, rounds: Rounds, features: int) -> Collected:
    """The rounds as a head of the last `features` layers reads them."""
    cut = rounds._replace(features=rounds.features[:, -features:])
    return Collected(cut, collecting.inputs(cut, with_features(pair.target, features), pair.params["target"]))


def some(collected: Collected, chosen: np.ndarray) -> Collected:
    """Those rounds."""
    return Collected(collected.rounds.take(chosen), collected.inputs[chosen])


def study(pair: pairs.Pair, args: argparse.Namespace, progress: Progress) -> list[dict[str, Any]]:
    """A record for each head and set of rounds that it was scored on."""
    rounds, files = log(pair, args, progress)
    names = [Path(file).stem for file in args.prompts]
    records = []

    def add(head: str, tried_on: str, num_rounds: int, evaluation: Evaluation) -> None:
        scores = {name: evaluation.scores[name]._asdict() for name in SHOWN}
        lengths = evaluation.lengths._asdict()
        cuts = {name: one._asdict() for name, one in evaluation.cuts.items()}
        record = {"head": head, "tried_on": tried_on, "trained_on": num_rounds, "lengths": lengths, "cuts": cuts}
        records.append(record | scores)

    for features in args.features:
        trained = train(read(pair, rounds, features), seed=args.seed)
        add(f"K = {features}", "held out", trained.num_rounds["training"], trained.held_out)
    collected = read(pair, rounds, args.default_features)
    held_out = split_by_prompt(rounds.prompts, args.seed).held_out
    for part in (2, 4):
        fewer = some(collected, ~held_out & (rounds.prompts % part == 0))
        trained = train(fewer, some(collected, held_out), seed=args.seed)
        assert trained.other_task is not None
        add(f"of 1 / {part} of the prompts", "held out", trained.num_rounds["training"], trained.other_task)
    for place, name in enumerate(names):
        trained = train(some(collected, files == place), some(collected, files != place), seed=args.seed)
        assert trained.other_task is not None
        add(f"of {name}", name, trained.num_rounds["training"], trained.held_out)
        add(f"of {name}", "the other files", trained.num_rounds["training"], trained.other_task)
    return records


def show(records: Sequence[dict[str, Any]]) -> None:
    """Accuracy and balanced accuracy of each predictor, and what cutting by it is estimated to give."""
    console = terminal.results_console()
    table = Table("head", "tried on", "rounds", *SHOWN, title="accuracy / balanced accuracy")
    cuts = Table("head", "tried on", *CUTS, title="estimated tokens a round / rollback, by the cut")
    for record in records:
        cells = (f"{record[name]['accuracy']:.3f} / {record[name]['balanced']:.3f}" for name in SHOWN)
        table.add_row(record["head"], record["tried_on"], str(record["trained_on"]), *cells)
        found = record["cuts"].values()
        estimates = (f"{one['tokens_per_round']:.3f} / {one['rollback']:.3f}" for one in found)
        cuts.add_row(record["head"], record["tried_on"], *estimates)
    console.print(table)
    console.print(cuts)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    count = integer(1)
    parser.add_argument("--prompts", nargs="+", required=True, metavar="FILE", help="JSON lines, one file a task")
    parser.add_argument("--features", nargs="+", type=count, default=[1, 2, 4, 8], metavar="K", help="layers")
    parser.add_argument("--default-features", type=count, default=4, metavar="K", help="of the others (default 4)")
    parser.add_argument("--num-prompts", type=count, default=60, metavar="N", help="of each file (default %(default)s)")
    parser.add_argument("--prompt-tokens", type=count, default=256, metavar="N", help="default %(default)s")
    parser.add_argument("--max-new-tokens", type=count, default=128, metavar="N", help="default %(default)s")
    parser.add_argument("--length", type=integer(3), default=8, metavar="N", help="gamma (default %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, metavar="F", help="default %(default)s")
    parser.add_argument("--batch-size", type=count, default=24, metavar="N", help="default %(default)s")
    parser.add_argument("--pair", default=pairs.DEFAULT, metavar="P", help="default %(default)s")
    parser.add_argument("--seed", type=integer(0), default=0, metavar="N", help="default %(default)s")
    parser.add_argument("--rounds", type=Path, metavar="FILE.npz", help="logged rounds, kept or read")
    parser.add_argument("--out", type=Path, help="also write the numbers to this JSON file")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> None:
    args = parse(argv)
    if args.default_features > max(args.features):
        raise SystemExit(f"--default-features {args.default_features}: at most the {max(args.features)} of --features")
    pair = pairs.load(args.pair)
    with terminal.progress() as progress:
        found = study(pair, args, progress)
    show(found)
    if args.out:
        records.save_result(args.out, vars(args), heads=found)


if __name__ == "__main__":
    main()
