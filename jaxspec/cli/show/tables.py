"""Profiles, plans and parity as tables and trees."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.table import Table
from rich.text import Text

from jaxspec import plan, tree
from jaxspec.cli.show.terminal import results_console
from jaxspec.profiles import Profile

if TYPE_CHECKING:
    from jaxspec.plan.predictions import Prediction
    from jaxspec.study.parity import Parity


BEST = "bold green"


def print_profile(profile: Profile, path: str) -> None:
    """The acceptance by rank and depth with its standard errors, the confidence's in one line, and the step times."""
    console = results_console()
    values = np.atleast_2d(profile.acceptance)
    errors = np.atleast_2d(profile.standard_errors if profile.standard_errors is not None else np.zeros_like(values))
    by_depth = np.ndim(profile.acceptance) == 2
    table = Table(title=f"Acceptance at temperature {profile.temperature:g}, ± standard error")
    table.add_column("child", justify="right")
    for depth in range(len(values)):
        table.add_column(f"depth {depth + 1}" if by_depth else "all depths", justify="right")
    for rank in range(values.shape[1]):
        cells = (f"{values[row, rank]:.3f} ±{errors[row, rank]:.3f}" for row in range(len(values)))
        table.add_row(f"rank {rank}", *cells)
    for name, numbers, digits in (("none", profile.rejection, 3), ("positions", profile.counts, 0)):
        if numbers is not None:
            table.add_row(name, *(f"{number:.{digits}f}" for number in np.atleast_1d(numbers)), style="dim")
    console.print(table)
    if profile.calibration is not None:
        shares, accepted = np.moveaxis(np.asarray(profile.calibration), -1, 0)
        fresh, other = (shares * accepted).sum(1)
        console.print(
            f"accepted of a chain: {fresh:.3f} right behind a rejection, {other:.3f} elsewhere", highlight=False
        )
    times = Table(title="Milliseconds of one forward")
    times.add_column("tokens", justify="right")
    sizes = sorted({*profile.verify_ms, *profile.draft_ms})
    for size in sizes:
        times.add_column(str(size), justify="right")
    for name, entries in (("target", profile.verify_ms), ("draft", profile.draft_ms)):
        times.add_row(name, *(f"{entries[size]:.1f}" if size in entries else "" for size in sizes))
    console.print(times)
    console.print(f"Written to {path}", soft_wrap=True, highlight=False, markup=False)


def print_plan(chosen: plan.Plan, profile: Profile, sizes: Sequence[int], depths: Sequence[int], speedups: Any) -> None:
    """The chosen tree, what is expected of it, and the speedups by size and depth, the best of them marked."""
    console = results_console()
    console.print(tree.draw(chosen.tree, plan.node_scores(chosen.tree, profile.acceptance)))
    shape = f"{chosen.tree.size} nodes, depth {chosen.tree.depth}" if chosen.tree.size > 1 else "no draft is worth it"
    console.print(f"method           {chosen.method} ({shape})", highlight=False)
    console.print(f"expected tokens  {chosen.expected_tokens:.3f} a round of {chosen.round_ms:.1f} ms", highlight=False)
    console.print(f"expected speedup {chosen.expected_speedup:.3f} over plain decoding", highlight=False)
    if not sizes:
        return
    table = Table(title="Predicted speedup by size (nodes with the root) and largest depth (edges)")
    table.add_column("size", justify="right")
    for depth in depths:
        table.add_column(f"≤ {depth}", justify="right")
    best = np.unravel_index(np.nanargmax(speedups), speedups.shape) if np.isfinite(speedups).any() else None
    for row, size in enumerate(sizes):
        cells = [Text(f"{value:.3f} " if math.isfinite(value) else "– ") for value in speedups[row]]
        if best is not None and row == best[0]:
            cells[best[1]] = Text(f"{speedups[best]:.3f}*", BEST)
        table.add_row(str(size), *cells)
    console.print(table)


def print_ranking(ranked: Sequence["Prediction"]) -> None:
    """Every method's predicted speed at its best setting; a dash where it is not predicted."""
    table = Table("method", "setting", title="Predicted speedup of every method at its best setting")
    for heading in ("tokens a round", "one device", "two devices"):
        table.add_column(heading, justify="right")
    for one in ranked:
        setting = f"{one.tree.size} nodes" if one.tree else f"length {one.length}" if one.length else ""
        setting += f", {one.max_branches} branches" if one.max_branches else ""
        setting += f", epsilon {one.epsilon:g}" if one.epsilon is not None else ""
        numbers = (one.expected_tokens, one.speedup, one.overlap_speedup)
        table.add_row(one.method, setting, *("–" if number is None else f"{number:.3f}" for number in numbers))
    results_console().print(table)


def print_parity(results: Mapping[str, "Parity"], names: Sequence[str], text: Callable[[Sequence[int]], str]) -> None:
    """For each method how many prompts fork, and where.

    Args:
        results: By method.
        names: Of the prompts.
        text: The text of token ids.
    """
    console = results_console()
    for method, parity in results.items():
        verdict = "no forks" if not parity.forks else f"{parity.forks} forks"
        style = "green" if not parity.forks else "bold red"
        counts = f" on {parity.prompts} prompts, {parity.tokens} tokens"
        console.print(Text.assemble((method, "bold"), ": ", (verdict, style), counts))
        if not parity.forks:
            continue
        table = Table("prompt", "id", "position", "plain", "method", "gap of logits")
        for fork in parity.first_forks:
            plain, token = (repr(text([one])) if one >= 0 else "(ended)" for one in (fork.plain, fork.token))
            gap = f"{fork.gap:.6f}" if math.isfinite(fork.gap) else "–"
            table.add_row(str(fork.prompt), Text(names[fork.prompt]), str(fork.position), Text(plain), Text(token), gap)
        console.print(table)
