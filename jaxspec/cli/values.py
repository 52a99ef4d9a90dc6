"""The types of options: they check a value before anything runs."""

import argparse
import math
import re
from collections.abc import Callable, Sequence

from jaxspec import tree
from jaxspec.catalogue.choosing import Optimal
from jaxspec.catalogue.registry import NAMES
from jaxspec.tree import TokenTree

LARGEST_TREE = 4096

_SHAPES: dict[str, tuple[Callable[..., TokenTree], int, Callable[..., int]]] = {
    "chain": (tree.chain, 1, lambda length: length),
    "star": (tree.star, 1, lambda width: width),
    "chains": (tree.chains, 2, lambda count, length: count * length),
    "comb": (tree.comb, 2, lambda width, depth: width * depth),
    "k-ary": (tree.k_ary, 2, lambda branching, depth: depth if branching < 2 else branching ** min(depth, 64)),
}
"""A shape's constructor, how many numbers it takes, and about how many nodes they make."""


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
    rule = "a number" if math.isinf(least) else f"a number {'above' if above else 'of at least'} {least:g}"
    rule += "" if math.isinf(most) else f", at most {most:g},"

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (math.isfinite(value) and least <= value <= most and not (above and value == least)):
            raise argparse.ArgumentTypeError(f"{text!r} is not in range: {rule} is needed")
        return value

    return parse


def token_ids(text: str) -> tuple[int, ...]:
    """An argparse type: token ids, each once."""
    if not re.fullmatch(r"\d{1,9}(,\d{1,9})*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of token ids: whole numbers as in 5,17 are needed")
    return tuple(dict.fromkeys(map(int, text.split(","))))


def one_of(*words: str) -> Callable[[str], str]:
    """An argparse type: one of these words."""

    def parse(text: str) -> str:
        if text not in words:
            raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(words)}")
        return text

    return parse


def methods(text: str) -> tuple[str, ...]:
    """An argparse type: names of methods, each once."""
    named = tuple(dict.fromkeys(text.split(",")))
    if unknown := [name for name in named if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no method; known: {', '.join(NAMES)}")
    return named


def shape(text: str) -> TokenTree | Optimal:
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
