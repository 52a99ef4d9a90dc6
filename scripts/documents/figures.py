"""Expected tokens a round as the tree grows: the optimal tree against fixed shapes of its size (SEQUOIA, figure 4).

    python scripts/documents/figures.py profile.json [--max-size 128] [--branching 2,4,8] [--out growth.png]

The profile is one of `jaxspec measure`. Where it has the acceptance by depth, depths that were not measured, or at too
few positions, are taken to be like the deepest one that was. Writes the figure, and its numbers beside it as JSON.
Needs the extra `plot`.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec import plan, records
from jaxspec.profiles import Profile
from jaxspec.tree import NO_PARENT, ROOT, TokenTree, chain

OPTIMAL = "optimal tree"

MIN_COUNT = 100
"""Positions of a depth that its acceptance is believed from."""


def expected_tokens(
    acceptance: Sequence[float] | np.ndarray, sizes: Sequence[int], branchings: Sequence[int]
) -> dict[str, list[float]]:
    """By shape the expected tokens a round at each size.

    Args:
        acceptance: `[B]` by child rank, or `[D, B]` by depth too, D at least the largest size less 1; ranks beyond B
            count as never accepted.
        sizes: Numbers of nodes, the root counted.
        branchings: Of the k chains and the k-ary trees.
    """
    known = np.asarray(acceptance)
    padded = np.zeros((*known.shape[:-1], max(known.shape[-1], *branchings)))
    padded[..., : known.shape[-1]] = known
    solution = plan.solve(acceptance, max(sizes))
    shapes: dict[str, Callable[[int], TokenTree]] = {OPTIMAL: solution.tree, "chain": lambda size: chain(size - 1)}
    for k in branchings:
        shapes[f"{k} chains"] = lambda size, k=k: chains(k, size)
    for k in branchings:
        shapes[f"{k}-ary tree"] = lambda size, k=k: k_ary(k, size)
    return {name: [plan.expected_tokens(shape(size), padded) for size in sizes] for name, shape in shapes.items()}


def chains(count: int, size: int) -> TokenTree:
    """`count` chains below the root with `size` nodes in all, the first of them longer where they can't be equal."""
    return TokenTree((NO_PARENT, *(max(ROOT, node - count) for node in range(1, size))))


def k_ary(branching: int, size: int) -> TokenTree:
    """The first `size` nodes of the `branching`-ary tree, level by level."""
    return TokenTree((NO_PARENT, *((node - 1) // branching for node in range(1, size))))


def deepened(profile: Profile, depth: int) -> np.ndarray:
    """`[depth, B]` acceptance by depth and child rank; see the top of this file."""
    rows = np.atleast_2d(profile.acceptance)
    if profile.counts is not None and rows.shape[0] > 1:
        rows = rows[: max(1, int(np.argmin(np.append(np.asarray(profile.counts) >= MIN_COUNT, False))))]
    return rows[np.minimum(np.arange(depth), len(rows) - 1)]


def draw(path: Path, sizes: Sequence[int], curves: dict[str, list[float]], title: str) -> None:
    """Draws the curves into an image file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, values in curves.items():
        style = "-" if name == OPTIMAL else "--" if "chain" in name else ":"
        axes.plot(sizes, values, style, label=name, linewidth=2.2 if name == OPTIMAL else 1.2)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("tree size (nodes, the root counted)")
    axes.set_ylabel("expected tokens a round")
    axes.set_title(title, fontsize="small")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", type=Path, help="a profile of jaxspec measure")
    parser.add_argument("--max-size", type=int, default=128, help="largest tree (default %(default)s)")
    parser.add_argument("--branching", default="2,4,8", help="k of the chains and trees (default %(default)s)")
    parser.add_argument("--out", type=Path, default=Path("growth.png"), help="default %(default)s")
    args = parser.parse_args(argv)
    profile = Profile.load(args.profile)
    acceptance = deepened(profile, args.max_size)
    sizes = list(range(2, args.max_size + 1))
    curves = expected_tokens(acceptance, sizes, [int(k) for k in args.branching.split(",")])
    origin = ("target", "draft", "protocol", "machine", "versions", "date")
    numbers: dict[str, Any] = {
        "acceptance": acceptance.tolist(),
        "temperature": profile.temperature,
        "profile": {name: getattr(profile, name) for name in origin},
        "sizes": sizes,
        "expected_tokens": curves,
    }
    shown = ", ".join(f"{value:.3f}" for value in acceptance[0, :4])
    draw(args.out, sizes, curves, f"acceptance at the root by rank {shown} …, temperature {profile.temperature:g}")
    records.write(args.out.with_suffix(".json"), numbers, indent=None)


if __name__ == "__main__":
    main()
