"""A benchmark as a figure."""

import importlib.util
import textwrap
from pathlib import Path

import numpy as np

from jaxspec.study.bench_results import BASELINE, Report


def check_plot(path: Path) -> None:
    """Whether a figure can be drawn there; asked before anything is timed.

    Raises:
        ValueError: matplotlib is missing, or it is no PNG file's path.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: install the extra by pip install 'jaxspec[plot]', or leave it out")
    if path.suffix.lower() != ".png":
        raise ValueError(f"--plot {path} is no PNG file: give a name that ends in .png")


def plot(report: Report, path: str, title: str) -> None:
    """Draws the speedups by category as bars, with the middle half of the prompts, into a PNG file."""
    from matplotlib.figure import Figure  # pyright: ignore[reportMissingImports] (the extra `plot`)

    groups = report.by_category()
    if len(groups) > 1:
        groups["all"] = report.measures()
    names = [name for name in report.samples if name != BASELINE] or [BASELINE]
    figure = Figure(figsize=(max(6.4, 1.2 + 0.35 * len(groups) * (len(names) + 1)), 4.2), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(names)
    for place, name in enumerate(names):
        medians = np.array([measures[name]["speedup"] for measures in groups.values()])
        quartiles = np.array([measures[name]["speedup_spread"] for measures in groups.values()])
        centres = np.arange(len(groups)) + (place - (len(names) - 1) / 2) * width
        lines = np.abs(quartiles.T - medians)
        axes.bar(centres, medians, width, yerr=lines, capsize=2, error_kw={"linewidth": 0.8}, label=name)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xticks(range(len(groups)), list(groups), rotation=30, ha="right")
    axes.set_ylabel(f"speedup over {BASELINE}")
    axes.set_title("\n".join(textwrap.wrap(title, 90)), fontsize="small")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=150)
