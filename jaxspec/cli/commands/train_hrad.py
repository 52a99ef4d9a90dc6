"""The command `jaxspec train-hrad`: logged rounds of a pair become a trained head, its figures and its card."""

import argparse
import datetime
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec import records
from jaxspec.catalogue import prompts
from jaxspec.catalogue.registry import METHODS
from jaxspec.cli import options, values
from jaxspec.cli.show import terminal

if TYPE_CHECKING:
    import jax

    from jaxspec.base import Model, Progress
    from jaxspec.pairs.loading import Pair
    from jaxspec.train.hrad.collecting import Rounds
    from jaxspec.train.hrad.evaluation import Cost
    from jaxspec.train.hrad.trained import Collected, Trained

NUM_PROMPTS, LENGTH, FEATURES, EPOCHS = 200, 8, 4, 20
"""Defaults. The last two are SpecBranch's."""


def register(commands: Any) -> None:
    parser = options.add_command(
        commands,
        run,
        "train-hrad",
        "Train H-RAD, which guesses how much of a continuation the target will accept, on a pair's own rounds.",
        'The folder gets hrad.safetensors, hrad.json and a card. A pair.json names it in its list "hrad".\n'
        "--json prints hrad.json.\n\n"
        "example: jaxspec train-hrad --prompts gsm8k.jsonl --held-out-prompts humaneval.jsonl --out hrad-t0",
    )
    options.add_prompts(parser, NUM_PROMPTS)
    options.add_prompt_tokens(parser)
    parser.add_argument(
        "--held-out-prompts", metavar="FILE", help="prompts of another task, to try the head on as well"
    )
    parser.add_argument("--out", required=True, metavar="FOLDER", help="where the head is written")
    parser.add_argument("--rounds", metavar="FILE.npz", help="where the logged rounds are kept, or read if it exists")
    for option, least, default, about in (
        ("--length", 3, LENGTH, "tokens of a branch, its candidate included"),
        ("--features", 1, FEATURES, "how many of the target's last hidden states are read"),
        ("--epochs", 1, EPOCHS, "most epochs of training"),
        ("--batch-size", 1, 8, "prompts decoded side by side"),
    ):
        about += " (default %(default)s)"
        parser.add_argument(option, type=values.integer(least), default=default, metavar="N", help=about)
    options.add_models(parser)
    options.add_sampling(parser, 128)


def run(args: argparse.Namespace) -> int:
    options.refuse_filters(args)
    out = _writable_folder(args.out)
    if args.rounds is not None and not Path(args.rounds).parent.is_dir():
        raise ValueError(f"--rounds {args.rounds} can't be kept: a file in a folder that exists is needed")
    chosen = options.read_prompts(args)
    others = prompts.read(args.held_out_prompts, args.num_prompts) if args.held_out_prompts else []
    pair = options.load_pair(args)
    encoded = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in chosen]
    encoded_others = [prompts.encode(pair, prompt, args.prompt_tokens) for prompt in others]

    import jax

    from jaxspec.cli.show import head_tables
    from jaxspec.networks import with_features
    from jaxspec.pairs import heads
    from jaxspec.train.hrad import cards, evaluation
    from jaxspec.train.hrad.trained import train

    target = with_features(pair.target, args.features)
    keys = jax.random.split(jax.random.key(args.seed), 2)
    with terminal.progress() as progress:
        rounds = _rounds(args, pair, target, encoded, keys[0], progress)
        other = None
        if encoded_others:
            logged = _collect(args, pair, target, encoded_others, keys[1], "rounds of the other task", progress)
            other = _with_inputs(logged, pair, target)
        trained = train(
            _with_inputs(rounds, pair, target), other, seed=args.seed, epochs=args.epochs, progress=progress
        )
        progress("round time", 0, 1)
        cost = evaluation.cost(*trained.head, _round_ms(args, pair, target, encoded[0], trained))
        progress("round time", 1, 1)
    record = records.finite(_record(args, pair, encoded, trained, cost))
    title = f"H-RAD for {pair.name}, temperature {args.temperature:g}, length {args.length}"
    heads.save(out, *trained.head, record, cards.card(record, title))
    if args.json:
        print((out / heads.RECORD).read_text(encoding="utf-8"), end="")
    else:
        console = terminal.results_console()
        head_tables.print_head(console, record)
        console.print(f"Written to {out}", soft_wrap=True, highlight=False, markup=False)
    return 0


def _rounds(
    args: argparse.Namespace,
    pair: "Pair",
    target: "Model",
    encoded: list[list[int]],
    key: "jax.Array",
    progress: "Progress",
) -> "Rounds":
    """The rounds, from the file of `--rounds` where it exists."""
    from jaxspec.train.hrad import collecting

    file = None if args.rounds is None else Path(args.rounds)
    names = ("prompt_tokens", "length", "temperature", "draft_temperature", "max_new_tokens", "seed", "dtype")
    made_with = {"pair": pair.name, "prompts": Path(args.prompts).name, "num_prompts": len(encoded)}
    made_with |= {name: getattr(args, name) for name in names}
    if file is not None and file.exists():
        return collecting.load(file, made_with, args.features)
    rounds = _collect(args, pair, target, encoded, key, "rounds", progress)
    if file is not None:
        collecting.save(file, rounds, made_with)
    return rounds


def _collect(
    args: argparse.Namespace,
    pair: "Pair",
    target: "Model",
    encoded: list[list[int]],
    key: "jax.Array",
    what: str,
    progress: "Progress",
) -> "Rounds":
    from jaxspec import decode
    from jaxspec.train.hrad import collecting

    progress(what, 0, len(encoded))
    return collecting.collect(
        collecting.logging_decoder(target, pair.draft, args.length),
        pair.params,
        encoded,
        key=key,
        max_new_tokens=args.max_new_tokens,
        sampling=decode.Sampling(args.temperature),
        draft_temperature=args.draft_temperature,
        stop_ids=pair.stop_ids,
        batch_size=args.batch_size,
        progress=lambda _, done, total: progress(what, done, total),
    )


def _with_inputs(rounds: "Rounds", pair: "Pair", target: "Model") -> "Collected":
    from jaxspec.train.hrad import collecting
    from jaxspec.train.hrad.trained import Collected

    return Collected(rounds, collecting.inputs(rounds, target, pair.params["target"]))


def _round_ms(args: argparse.Namespace, pair: "Pair", target: "Model", prompt: list[int], trained: "Trained") -> float:
    """Milliseconds of a round of SpecBranch with the head, batch size 1."""
    import jax

    from jaxspec import decode
    from jaxspec.measure import timing

    network, params = trained.head
    branches = METHODS["specbranch"].defaults["max_branches"]
    decoder = decode.specbranch(target, pair.draft, network, args.length, branches, trained.settings.head.epsilon)
    return timing.round_time(
        decoder,
        {**pair.params, "hrad": params},
        prompt,
        key=jax.random.key(args.seed),
        num_tokens=(8, 56),
        sampling=decode.Sampling(args.temperature),
        repeats=3,
    )


def _record(
    args: argparse.Namespace, pair: "Pair", encoded: list[list[int]], trained: "Trained", cost: "Cost"
) -> dict[str, Any]:
    """What `hrad.json` states beside the network's config. Files by name: their places are this machine's."""
    from jaxspec.train.hrad.trained import metrics

    settings = {"num_prompts": len(encoded), "prompts": Path(args.prompts).name}
    settings |= {"held_out_prompts": Path(args.held_out_prompts).name if args.held_out_prompts else None}
    names = ("prompt_tokens", "max_new_tokens", "draft_temperature", "seed", "epochs", "dtype")
    return {
        "pair": pair.name,
        "temperature": args.temperature,
        "length": args.length,
        "features": args.features,
        "epsilon": trained.settings.head.epsilon,
        "trained": settings | {name: getattr(args, name) for name in names} | trained.protocol(),
        "metrics": metrics(trained, cost),
        "command": _command(args, pair),
        "machine": records.machine_description(),
        "versions": records.library_versions(),
        "date": datetime.date.today().isoformat(),
    }


def _command(args: argparse.Namespace, pair: "Pair") -> str:
    """The command that makes the head again, with every setting that matters."""
    words: dict[str, Any] = {"--pair": pair.name}
    if args.target is not None:
        words = {"--target": args.target, "--draft": args.draft}
    words |= {"--prompts": Path(args.prompts).name, "--num-prompts": args.num_prompts}
    if args.held_out_prompts:
        words["--held-out-prompts"] = Path(args.held_out_prompts).name
    for name in ("draft_layers", "dtype", "prompt_tokens", "length", "features", "temperature", "draft_temperature"):
        words[f"--{name.replace('_', '-')}"] = getattr(args, name)
    for name in ("max_new_tokens", "seed", "epochs", "batch_size"):
        words[f"--{name.replace('_', '-')}"] = getattr(args, name)
    words["--out"] = Path(args.out).name
    stated = {option: value for option, value in words.items() if value is not None}
    return shlex.join(["jaxspec", "train-hrad", *(f"{part}" for pair in stated.items() for part in pair)])


def _writable_folder(path: str) -> Path:
    """The folder that is made or filled, checked before the work that gives it."""
    out = Path(path)
    existing = out if out.exists() else out.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        raise ValueError(
            f"--out {out} can't be written: a folder, or a new one in a folder that can be written, is needed"
        )
    return out
