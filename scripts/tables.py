"""Markdown tables of what `ablation.py` wrote, one row an arm, one table a temperature and task.

    python scripts/tables.py scripts/results/ablation-{methods,specbranch,confidence}-*-t0.json

A file's name ends in the task and the temperature, as in `ablation-methods-gsm8k-t0.json`; files of one task and
temperature share a table. Speedups are simulated, on one device / two, with each of the tables of step times.
"""

import argparse
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

NAME = re.compile(r"ablation-(?P<arms>\w+)-(?P<task>\w+)-t(?P<temperature>[\d.]+)\.json")
SIMULATED = re.compile(r"simulated_(?P<times>\w+)_1")
MEASURED = {
    "tokens a round": ("tokens_per_round", 2),
    "accepted run": ("mean_accepted_run", 2),
    "rollback, path": ("rollback_path", 2),
    "rollback, all": ("rollback_all", 2),
}


def label(arm: Mapping[str, Any]) -> str:
    """An arm's name, with what it was set to where that is not in its name."""
    names = {"SpecBranch": "SpecBranch", "SpecBranch, confidence": "– confidence alone"}
    name = arm["arm"]
    return f"{names[name]}, ε {arm['epsilon']:g}, k_max {arm['max_branches']}" if name in names else name


def rows(result: Mapping[str, Any]) -> Iterable[list[str]]:
    """The cells of each arm of a result."""
    for arm in result["arms"]:
        cells = [label(arm)]
        cells += [f"{arm[key]:.{digits}f}" for key, digits in MEASURED.values()]
        yield cells + [f"{arm[key]:.2f} / {arm[key[:-1] + '2']:.2f}" for key in simulated(result)]


def simulated(result: Mapping[str, Any]) -> list[str]:
    """The keys of the speedups on one device."""
    return [key for key in result["arms"][0] if SIMULATED.fullmatch(key)]


def heading(key: str) -> str:
    """What a column of speedups is simulated with."""
    found = SIMULATED.fullmatch(key)
    assert found is not None
    times = found["times"]
    return "this machine" if times == "machine" else times.replace("flat_c", "c = ")


def tables(files: Sequence[Path]) -> str:
    """All tables.

    Raises:
        ValueError: A file's name does not say its task and temperature.
    """
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for file in files:
        found = NAME.fullmatch(file.name)
        if found is None:
            raise ValueError(
                f"{file.name} must be named like ablation-methods-gsm8k-t0.json, by arms, task, temperature"
            )
        result = json.loads(file.read_text(encoding="utf-8"))
        groups.setdefault((found["temperature"], found["task"]), []).append(result)
    lines = []
    for (temperature, task), results in sorted(groups.items()):
        columns = ["", *MEASURED, *map(heading, simulated(results[0]))]
        lines += [f"### {task}, T = {temperature}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
        lines += [f"| {' | '.join(cells)} |" for result in results for cells in rows(result)]
        lines.append("")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="results of ablation.py")
    print(tables(parser.parse_args(argv).files))


if __name__ == "__main__":
    main()
