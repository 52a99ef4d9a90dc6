"""What the command line's options mean: their groups, and the types that check their values before anything runs."""

import argparse
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxspec import tree
from jaxspec.catalogue import prompts
from jaxspec.catalogue.choosing import (
    DEFAULT_ACCEPTANCE,
    DEFAULT_BRANCHES,
    DEFAULT_EPSILON,
    DEFAULT_LENGTH,
    DEFAULT_SIZE,
    METHODS,
    OWNERS,
    Optimal,
)
from jaxspec.pairs import fetching
from jaxspec.tree import TokenTree

if TYPE_CHECKING:
    from jaxspec.pairs.loading import Pair

LARGEST_TREE = 4096

_SHAPES: dict[str, tuple[Callable[..., TokenTree], int, Callable[..., int]]] = {
    "chain": (tree.chain, 1, lambda length: length),
    "star": (tree.star, 1, lambda width: width),
    "chains": (tree.chains, 2, lambda count, length: count * length),
    "comb": (tree.comb, 2, lambda width, depth: width * depth),
    "k-ary": (tree.k_ary, 2, lambda branching, depth: depth if branching < 2 else branching ** min(depth, 64)),
}
"""A shape's constructor, how many numbers it takes, and about how many nodes they make."""


def add_command(
    commands: Any, run: Callable[[argparse.Namespace], int], name: str, about: str, epilog: str
) -> argparse.ArgumentParser:
    """A command's parser, with the option that all have."""
    parser = commands.add_parser(
        name,
        help=about,
        description=about,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, and nothing else")
    return parser


def add_models(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("models")
    group.add_argument("--pair", metavar="P", help=f"a pair's name or folder (default {fetching.DEFAULT})")
    group.add_argument("--target", metavar="T", help="a model's folder, .gguf file or hub id, in place of a pair's")
    group.add_argument("--draft", metavar="D", help="the draft for --target")
    group.add_argument(
        "--draft-layers",
        type=integer(1),
        metavar="N",
        help="draft with the target's first N layers (default: the pair's own draft)",
    )
    group.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default="float32", help="of the parameters (default %(default)s)"
    )


def add_sampling(parser: argparse.ArgumentParser, max_new_tokens: int) -> None:
    group = parser.add_argument_group("sampling")
    for option, kind, default, about in (
        ("--temperature", number(0, math.inf), 0.0, "of the target; 0 is greedy (default %(default)s)"),
        ("--draft-temperature", number(0, math.inf), None, "of the draft; changes speed only (default: the target's)"),
        (
            "--top-p",
            number(0, 1, above=True),
            1.0,
            "probability that the likeliest tokens reach (default %(default)s)",
        ),
        ("--top-k", integer(0), 0, "tokens that are kept; 0 keeps all (default %(default)s)"),
        ("--min-p", number(0, 1), 0.0, "drop what is below this share of the likeliest's (default %(default)s)"),
        ("--max-new-tokens", integer(1), max_new_tokens, "limit of new tokens (default %(default)s)"),
        ("--seed", integer(0, 2**32 - 1), 0, "of the random numbers (default %(default)s)"),
    ):
        metavar = "F" if isinstance(default, float) or default is None else "N"
        group.add_argument(option, type=kind, default=default, metavar=metavar, help=about)


def add_shape(group: Any) -> None:
    group.add_argument(
        "--length",
        type=integer(1),
        metavar="N",
        help=f"drafted tokens of a round, for {', '.join(OWNERS['length'])}: those of a chain (adaedl: at most), or of "
        "a branch with its candidate (default: for specbranch that of the pair's head, if any; else the fastest in the "
        f"profile, or {DEFAULT_LENGTH} without one)",
    )
    group.add_argument(
        "--max-branches",
        type=integer(1),
        metavar="N",
        help="most candidates of a fork, for specbranch (default: the fastest in the profile, or "
        f"{DEFAULT_BRANCHES} without one)",
    )
    group.add_argument(
        "--epsilon",
        type=number(0, 1),
        metavar="F",
        help="confidence below which a continuation is cut, for specbranch (default: that of the pair's head, else the "
        f"fastest in the profile, or {DEFAULT_EPSILON})",
    )
    group.add_argument(
        "--tree",
        type=_tree,
        metavar="TREE",
        help='for sequoia: the parents of its nodes, as in "-1,0,0,1"; or chain:4 (length), star:3 (width), chains:2x3 '
        "(count, length), comb:3x4 (width, depth), k-ary:2x3 (children, depth); or, from a profile, optimal, or "
        "optimal:16 (nodes) (default: optimal where there is a profile; otherwise the optimal tree of "
        f"{DEFAULT_SIZE} nodes for the acceptance {', '.join(map(str, DEFAULT_ACCEPTANCE))})",
    )
    group.add_argument(
        "--profile", metavar="FILE", help="a profile to plan by (default: the pair's own, if it has one)"
    )


def add_prompts(parser: argparse.ArgumentParser, num_prompts: int | None) -> None:
    parser.add_argument(
        "--prompts", required=True, metavar="FILE", help='JSON lines with "prompt", "messages" or "turns"'
    )
    parser.add_argument(
        "--num-prompts",
        type=integer(1),
        default=num_prompts,
        metavar="N",
        help=f"how many of its prompts, from the first on (default {num_prompts or 'all'})",
    )


def add_prompt_tokens(parser: argparse.ArgumentParser) -> None:
    about = "tokens to which a prompt's text is cut, the chat template included (default %(default)s)"
    parser.add_argument("--prompt-tokens", type=integer(1), default=128, metavar="N", help=about)


def add_methods(parser: argparse.ArgumentParser) -> None:
    """Several methods, speculative and sequoia where none is named, and their shapes."""
    group = parser.add_argument_group("method")
    methods = group.add_mutually_exclusive_group()
    about = f"methods to compare, of {', '.join(METHODS)} (default speculative,sequoia)"
    default = ("speculative", "sequoia")
    methods.add_argument("--methods", type=method_list, default=default, metavar="A,B", help=about)
    methods.add_argument("--method", type=method_list, dest="methods", metavar="M", help="one method to compare")
    add_shape(group)


def refuse_filters(args: argparse.Namespace) -> None:
    """Raises where an option narrows the target's distribution by more than its temperature."""
    for name, neutral in (("top_p", 1.0), ("top_k", 0), ("min_p", 0.0)):
        if getattr(args, name) != neutral:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} can't be measured: acceptance is measured by temperature alone; leave it out")


def writable(option: str, path: str) -> Path:
    """The path of a result's file, checked before the work that gives it."""
    out = Path(path)
    if not os.access(out if out.exists() else out.parent, os.W_OK) or out.is_dir() or not out.parent.is_dir():
        raise ValueError(f"{option} {out} can't be written: a file in a folder that can be written is needed")
    return out


def read_prompts(args: argparse.Namespace) -> list[prompts.Prompt]:
    """The prompts that the options name."""
    chosen = prompts.read(args.prompts, args.num_prompts)
    if args.num_prompts is not None and len(chosen) < args.num_prompts:
        fetching.report(f"{args.prompts} has {len(chosen)} prompts, not {args.num_prompts}: all are taken")
    return chosen


def load_pair(args: argparse.Namespace) -> "Pair":
    """The pair that the options name."""
    if (args.target is None) != (args.draft is None):
        raise ValueError("--target and --draft go together: give both, or a pair by --pair")
    if args.target is not None and (args.pair is not None or args.draft_layers is not None):
        raise ValueError(
            "--target and --draft name the models, so that --pair and --draft-layers can't: leave them out"
        )

    from jaxspec import pairs

    if args.target is not None:
        return pairs.pair(args.target, args.draft, dtype=args.dtype)
    return pairs.load(args.pair or fetching.DEFAULT, dtype=args.dtype, draft_layers=args.draft_layers)


def common_config(args: argparse.Namespace, pair: "Pair") -> dict[str, Any]:
    """Every setting that all methods share, resolved."""
    names = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "seed", "dtype")
    return {
        "pair": pair.name,
        "sources": dict(pair.sources),
        "draft_temperature": args.temperature if args.draft_temperature is None else args.draft_temperature,
        "stop_ids": list(pair.stop_ids),
    } | {name: getattr(args, name) for name in names}


def integer(least: int, most: int | None = None) -> Callable[[str], int]:
    """An argparse type: whole numbers from `least` to `most`."""
    rule = f"a whole number, {least} or more," if most is None else f"a whole number from {least} to {most}"

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?\d{1,18}", text) or not least <= int(text) <= (math.inf if most is None else most):
            raise argparse.ArgumentTypeError(f"{text!r} is not in range: {rule} is needed")
        return int(text)

    return parse


def number(least: float, most: float, above: bool = False) -> Callable[[str], float]:
    """An argparse type: finite numbers from `least` (or, with `above`, above it) to `most`."""
    rule = f"a number {'above' if above else 'of at least'} {least:g}" + (
        "" if math.isinf(most) else f", at most {most:g},"
    )

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most and not (above and value == least)):
            raise argparse.ArgumentTypeError(f"{text!r} is not in range: {rule} is needed")
        return value

    return parse


def method_list(text: str) -> tuple[str, ...]:
    methods = tuple(dict.fromkeys(text.split(",")))
    if unknown := [method for method in methods if method not in METHODS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no method; known: {', '.join(METHODS)}")
    return methods


def _tree(text: str) -> TokenTree | Optimal:
    """An argparse type: what `--tree` says."""
    kind, _, rest = text.partition(":")
    try:
        if re.fullmatch(r"[-\d,\s]+", text):
            parsed = TokenTree(tuple(int(parent) for parent in text.split(",")))
        elif kind == "optimal" and re.fullmatch(r"(:\d{1,4})?", text.removeprefix(kind)):
            return Optimal(int(rest) if rest else None)
        elif kind in _SHAPES and re.fullmatch(r"\d{1,4}(x\d{1,4})?", rest):
            make, count, nodes = _SHAPES[kind]
            sizes = [int(size) for size in rest.split("x")]
            if len(sizes) != count:
                raise ValueError(f"{kind} takes {count} numbers, not {len(sizes)}")
            if nodes(*sizes) > LARGEST_TREE:
                raise ValueError(f"a tree has at most {LARGEST_TREE} nodes here")
            parsed = make(*sizes)
        else:
            raise ValueError(
                f'parents as in "-1,0,0,1", a shape of {", ".join(_SHAPES)} with its numbers as in k-ary:2x3, '
                "or optimal is needed"
            )
        if parsed.size < 2:
            raise ValueError("it drafts nothing: a node below the root is needed")
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no tree: {error}") from error
    return parsed


def with_trees(argv: Sequence[str]) -> list[str]:
    """The arguments, with parents joined to their `--tree`: alone, argparse would take the "-1" for an option."""
    joined: list[str] = []
    for argument in argv:
        if joined and joined[-1] == "--tree" and argument.startswith("-1"):
            joined[-1] = f"--tree={argument}"
        else:
            joined.append(argument)
    return joined
