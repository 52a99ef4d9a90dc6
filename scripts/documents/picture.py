"""The README's picture: two trees with their acceptances, and the speedups that were measured.

    python scripts/documents/picture.py [--out scripts/results/picture.png]

Left the tree that the pair's profile makes the fastest on two cores, and the best one of 16 nodes; a node's figure is
the share of rounds that accept it, by the profile. Right what the first tree gives on Spec-Bench's tasks
(`bench-t0.json`, `bench-t0.6.json`). Needs the extra `plot`.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec import plan
from jaxspec.profiles import Profile
from jaxspec.tree import NO_PARENT, ROOT, TokenTree

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "scripts" / "results"
PROFILE = REPOSITORY / "models" / "smollm2-135m" / "profile-t0.json"
LARGE = 16
"""Nodes of the larger tree."""

PAPER, INK, FAINT, BLUE, SKY, GREY = "#fbfbf8", "#22303c", "#7d8994", "#1f6fb2", "#8fc1e8", "#c9d0d6"
TASKS = {"mt_bench": "chat", "summarization": "summaries", "math_reasoning": "mathematics", "qa": "questions"}


def accepted(tree: TokenTree, acceptance: np.ndarray) -> list[float]:
    """The share of rounds that accept each node, from `[D, B]` acceptances by depth and child rank."""
    shares = [1.0]
    for node in range(1, tree.size):
        parent = tree.parents[node]
        shares.append(shares[parent] * float(acceptance[tree.depths[parent], tree.child_rank[node]]))
    return shares


def places(tree: TokenTree) -> list[tuple[float, float]]:
    """Where each node is drawn: below its parent, a first child straight below it."""
    found = [(0.0, 0.0)] * tree.size
    columns = 0

    def place(node: int, depth: int) -> None:
        nonlocal columns
        found[node] = (float(columns), -float(depth))
        for rank, child in enumerate(tree.children[node]):
            columns += rank > 0
            place(child, depth + 1)

    place(ROOT, 0)
    return found


def draw_tree(axes: Any, tree: TokenTree, acceptance: np.ndarray, title: str) -> None:
    """A tree, downwards, each node as strong as it is often accepted."""
    shares, where = accepted(tree, acceptance), places(tree)
    for node, parent in enumerate(tree.parents):
        if parent != NO_PARENT:
            (x, y), (parent_x, parent_y) = where[node], where[parent]
            axes.plot([parent_x, x], [parent_y, y], color=GREY, linewidth=1 + 5 * shares[node], zorder=1)
    for node, (x, y) in enumerate(where):
        strength = 0.2 + 0.8 * min(1.0, shares[node] / 0.5)
        color = INK if node == ROOT else _mix(BLUE, strength)
        axes.scatter([x], [y], s=520, color=color, edgecolors="white", linewidths=1.5, zorder=2)
        text = "1" if node == ROOT else f"{shares[node]:.2f}".lstrip("0")
        shade = "white" if node == ROOT or strength > 0.6 else INK
        axes.text(x, y, text, ha="center", va="center", fontsize=8.5, color=shade, zorder=3)
    expected = plan.expected_tokens(tree, acceptance)
    axes.set_title(f"{title}\n{expected:.2f} tokens a round", fontsize=11, color=INK, pad=8)
    xs, ys = zip(*where, strict=True)
    axes.set_xlim(min(xs) - 0.7, max(xs) + 0.7)
    axes.set_ylim(min(ys) - 0.6, 0.6)
    axes.axis("off")


def draw_speedups(axes: Any, results: Sequence[tuple[str, dict[str, Any], str]]) -> None:
    """Bars by task, a group for each task."""
    tasks = sorted(results[0][1]["by_category"], key=lambda task: _speedup(results[0][1], task))
    height = 0.8 / len(results)
    for place, (name, result, color) in enumerate(results):
        values = [_speedup(result, task) for task in tasks]
        rows = np.arange(len(tasks)) + 0.4 - height * (place + 0.5)
        axes.barh(rows, values, height * 0.92, color=color, label=name, zorder=2)
        for row, value in zip(rows, values, strict=True):
            axes.text(value + 0.02, row, f"{value:.2f}", va="center", fontsize=8.5, color=INK)
    axes.plot([1.0, 1.0], [-0.55, len(tasks) - 0.48], color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=3)
    axes.text(1.0, len(tasks) - 0.45, "plain decoding", ha="center", va="bottom", fontsize=8.5, color=INK)
    axes.set_yticks(range(len(tasks)), [TASKS.get(task, task) for task in tasks], fontsize=9.5, color=INK)
    axes.set_xlim(0, 2.15)
    axes.set_ylim(-0.55, len(tasks) - 0.1)
    axes.tick_params(length=0)
    axes.set_xticks([])
    axes.set_title(
        "Speedup of the planned tree over plain decoding\nSmolLM2-135M, two CPU cores", fontsize=11, color=INK, pad=8
    )
    axes.legend(frameon=False, fontsize=9, loc="lower right", labelcolor=INK)
    axes.set_facecolor(PAPER)
    for side in axes.spines.values():
        side.set_visible(False)


def _speedup(result: dict[str, Any], task: str) -> float:
    """Over plain decoding, of the method beside it."""
    (method,) = (name for name in result["methods"] if name != "autoregressive")
    return result["by_category"][task][method]["speedup"]


def _mix(color: str, strength: float) -> tuple[float, ...]:
    """A colour on the paper, as strong as that."""
    from matplotlib import colors

    on, below = np.array(colors.to_rgb(color)), np.array(colors.to_rgb(PAPER))
    return tuple(strength * on + (1 - strength) * below)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=RESULTS / "picture.png", metavar="FILE.png")
    args = parser.parse_args(argv)
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    greedy, sampled = (
        json.loads((RESULTS / name).read_text(encoding="utf-8")) for name in ("bench-t0.json", "bench-t0.6.json")
    )
    acceptance = np.asarray(Profile.load(PROFILE).acceptance)
    planned = TokenTree(tuple(greedy["methods"]["sequoia"]["config"]["tree"]))
    large = plan.optimal_tree(acceptance, LARGE, max_depth=len(acceptance))
    widths = {"width_ratios": [1.05, 2.3, 2.5]}
    figure, axes = pyplot.subplots(1, 3, figsize=(11.5, 4.7), gridspec_kw=widths, facecolor=PAPER)
    draw_tree(axes[0], planned, acceptance, "The planned tree")
    draw_tree(axes[1], large, acceptance, f"The best {LARGE} nodes")
    draw_speedups(axes[2], [("T = 0", greedy, BLUE), ("T = 0.6", sampled, SKY)])
    figure.text(
        0.015,
        0.02,
        "In a node: the share of rounds that accept it. The root is the newest token.",
        fontsize=9,
        color=FAINT,
    )
    figure.tight_layout(rect=(0, 0.04, 1, 1), w_pad=2)
    figure.savefig(args.out, dpi=150, facecolor=PAPER)


if __name__ == "__main__":
    main()
