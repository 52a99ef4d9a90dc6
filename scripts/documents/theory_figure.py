"""Speedup over acceptance of a chain, of overlap and of forked overlap for several c, and their tokens a step.

    python scripts/documents/theory_figure.py [--c 4,10,20] [--lengths 4,8] [--points points.json]
        [--ablations FILE.json …] [--out theory.png]

All closed forms of `jaxspec.theory`; overlap has a second device for its draft. `--siblings` is the share of rejections
that a fork's further candidates prevent: fork acceptance = alpha + siblings (1 - alpha). Points are a JSON list of
{"alpha", "length", "tokens_per_round", "method"} with method speculative, pearl or specbranch, drawn over the tokens a
step; their lengths are drawn too. `--ablations` takes them from the arms SpS, PEARL and SpecBranch of `ablation.py`'s
results: alpha is the mean acceptance of a first candidate. Writes the figure, and its numbers beside it as JSON. Needs
the extra `plot`.
"""

import argparse
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec import records, theory

ALPHAS = np.linspace(0.01, 0.99, 99)
METHODS = ("speculative", "pearl", "specbranch")
LABELS = dict(zip(METHODS, ("chain", "overlap (PEARL)", "forked overlap (SpecBranch)"), strict=True))
STYLES = dict(zip(METHODS, ("--", "-", ":"), strict=True))
MARKERS = dict(zip(METHODS, "os^", strict=True))
ARMS = {"SpS": "speculative", "PEARL": "pearl", "SpecBranch": "specbranch"}
"""`ablation.py`'s arms that are points, and their methods."""

POINT_KEYS = {"alpha", "length", "tokens_per_round", "method"}


def fork_acceptance(alpha: Any, siblings: float) -> Any:
    """Acceptance at a fork whose further candidates prevent this share of the rejections."""
    return alpha + siblings * (1 - alpha)


def speedups(alpha: Any, c: float, siblings: float) -> dict[str, Any]:
    """By method the speedup at its best length."""
    fork_alpha = fork_acceptance(alpha, siblings)
    bests = (
        theory.best_chain(alpha, 1.0, c),
        theory.best_overlap(alpha, 1.0, c),
        theory.best_overlap(alpha, 1.0, c, fork_alpha),
    )
    return {method: best.speedup for method, best in zip(METHODS, bests, strict=True)}


def tokens(alpha: Any, length: int, siblings: float) -> dict[str, Any]:
    """By method the expected tokens a round or step, drafting `length` tokens."""
    values = (
        theory.chain_tokens(alpha, length),
        theory.overlap_tokens(alpha, length),
        theory.overlap_tokens(alpha, length, fork_acceptance(alpha, siblings)),
    )
    return dict(zip(METHODS, values, strict=True))


def read_points(path: Path) -> list[dict[str, Any]]:
    """The measured points of a file.

    Raises:
        ValueError: The file is not such a list; names the first entry that is wrong.
    """
    points = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(points, list):
        raise ValueError(f"{path} holds a {type(points).__name__}, but a list of points is needed")
    for index, point in enumerate(points):
        if not isinstance(point, dict) or not point.keys() >= POINT_KEYS:
            raise ValueError(f"point {index} of {path} is {point!r}, but needs the keys {sorted(POINT_KEYS)}")
        if point["method"] not in METHODS:
            raise ValueError(f"point {index} of {path} has method {point['method']!r}, but one of {METHODS} is needed")
    return points


def read_arms(path: Path) -> list[dict[str, Any]]:
    """The arms of one of `ablation.py`'s results that are points.

    Raises:
        ValueError: It has none.
    """
    result = json.loads(path.read_text(encoding="utf-8"))
    points = [
        {
            "alpha": arm["acceptance"][0],
            "length": result["settings"]["length"],
            "tokens_per_round": arm["tokens_per_round"],
            "method": ARMS[arm["arm"]],
            "source": path.name,
        }
        for arm in result["arms"]
        if arm["arm"] in ARMS
    ]
    if not points:
        raise ValueError(f"{path} has the arms {[arm['arm'] for arm in result['arms']]}, but points are {list(ARMS)}")
    return points


def draw(path: Path, numbers: dict[str, Any]) -> None:
    """Draws the numbers into an image file."""
    from matplotlib.figure import Figure

    by_c, by_length = numbers["speedup"], numbers["tokens"]
    figure = Figure(figsize=(3.6 * (len(by_c) + 1), 4.2), layout="constrained")
    *panels, last = figure.subplots(1, len(by_c) + 1)
    for axes, (c, curves) in zip(panels, by_c.items(), strict=True):
        for method, values in curves.items():
            axes.plot(numbers["alpha"], values, STYLES[method], label=LABELS[method])
        axes.set_title(f"c = {c}, best lengths", fontsize="small")
        axes.set_ylabel("speedup over plain decoding")
        axes.set_yscale("log", base=2)
        axes.yaxis.set_major_formatter("{x:g}x")
    for row, (length, curves) in enumerate(by_length.items()):
        for method, values in curves.items():
            last.plot(numbers["alpha"], values, STYLES[method], color=f"C{row}", linewidth=1.2)
        last.plot([], [], color=f"C{row}", label=f"length {length}")
        for point in numbers["points"]:
            if str(point["length"]) == length:
                where = (point["alpha"], point["tokens_per_round"])
                last.plot(*where, MARKERS[point["method"]], color=f"C{row}", markeredgecolor="black")
    measured = {point["method"] for point in numbers["points"]}
    for method in filter(measured.__contains__, METHODS):
        last.plot([], [], MARKERS[method], color="white", markeredgecolor="black", label=f"measured: {LABELS[method]}")
    last.set_title("lines as on the left", fontsize="small")
    last.set_ylabel("tokens a round or step")
    for axes in (*panels, last):
        axes.set_xlabel("acceptance alpha")
        axes.grid(alpha=0.3)
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--c", default="4,10,20", help="target step / draft step (default %(default)s)")
    parser.add_argument("--lengths", default="4,8", help="drafted tokens a step (default %(default)s)")
    parser.add_argument("--siblings", type=float, default=0.5, help="share of rejections (default %(default)s)")
    parser.add_argument("--points", type=Path, help="measured points, a JSON list")
    parser.add_argument("--ablations", type=Path, nargs="+", default=[], metavar="FILE", help="of ablation.py")
    parser.add_argument("--out", type=Path, default=Path("theory.png"), help="default %(default)s")
    args = parser.parse_args(argv)
    if importlib.util.find_spec("matplotlib") is None:
        parser.exit(1, "the figure needs matplotlib: install the extra by pip install 'jaxspec[plot]'\n")
    points = [] if args.points is None else read_points(args.points)
    points += [point for path in args.ablations for point in read_arms(path)]
    for point in points:
        point["expected"] = tokens(point["alpha"], point["length"], args.siblings)[point["method"]]
    lengths = sorted({int(length) for length in args.lengths.split(",")} | {point["length"] for point in points})
    numbers = {
        "alpha": ALPHAS.tolist(),
        "siblings": args.siblings,
        "speedup": {c: _lists(speedups(ALPHAS, float(c), args.siblings)) for c in args.c.split(",")},
        "tokens": {str(length): _lists(tokens(ALPHAS, length, args.siblings)) for length in lengths},
        "points": points,
    }
    draw(args.out, numbers)
    records.write(args.out.with_suffix(".json"), numbers, indent=None)


def _lists(curves: dict[str, Any]) -> dict[str, list[float]]:
    return {method: values.tolist() for method, values in curves.items()}


if __name__ == "__main__":
    main()
