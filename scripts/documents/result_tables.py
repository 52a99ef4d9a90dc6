"""The tables of `jaxspec bench` and of timed scripts, each a function of the folder with the JSON files."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]

TASKS = {"math_reasoning": "math"}
"""Shorter headings."""


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table: its heading and its rows."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"|{'|'.join(cells)}|" if cells[0] == "---" else f"| {' | '.join(cells)} |" for cells in lines)


def read(folder: Path, name: str) -> Json:
    return json.loads((folder / name).read_text(encoding="utf-8"))


def number(value: float | None, digits: int = 2) -> str:
    """A dash where there is nothing."""
    return "–" if value is None else f"{value:.{digits}f}"


# `jaxspec bench`


def by_task(folder: Path, files: Mapping[str, str], shown: Mapping[str, str]) -> str:
    """A row for each file and measure, a column for each task and one for their mean; of the method beside plain."""
    rows: list[list[str]] = []
    tasks: list[str] = []
    for title, file in files.items():
        result = read(folder, file)
        (method,) = (name for name in result["methods"] if name != "autoregressive")
        tasks = list(result["by_category"])
        for label, key in shown.items():
            values = [result["by_category"][task][method][key] for task in tasks]
            rows.append([f"{title}, {label}", *map(number, [*values, sum(values) / len(values)])])
    return markdown(["", *(TASKS.get(task, task) for task in tasks), "mean of tasks"], rows)


TOKENS = {"tokens a round": "tokens_per_round"}
SPEEDUP = {"speedup over plain decoding": "speedup"}
DECODING = {"the same behind the prompt's reading": "decode_speedup"}
FIXED = {"T=0": "bench-t0.json", "T=.6": "bench-t0.6.json"}
STOPPED = {"T=0": "bench-t0-stop.json", "T=.6": "bench-t0.6-stop.json"}


def summary(folder: Path) -> str:
    return by_task(folder, FIXED, TOKENS | SPEEDUP)


def fixed_lengths(folder: Path) -> str:
    return by_task(folder, FIXED, TOKENS | SPEEDUP | DECODING)


def stopped(folder: Path) -> str:
    return by_task(folder, STOPPED, TOKENS | SPEEDUP | DECODING)


def methods(folder: Path) -> str:
    """Every method of one run, the fastest first."""

    def row(name: str, one: Json) -> list[str]:
        config = one["config"]
        drafted = len(config["tree"]) - 1 if config["tree"] else config["length"]
        measures = ("tokens_per_round", "speedup", "decode_speedup", "rollback_path", "rollback_all")
        return [
            name,
            str(drafted or ""),
            *(number(one[key]) for key in measures),
            number(config.get("expected_speedup")),
        ]

    found = sorted(read(folder, "bench-methods.json")["methods"].items(), key=lambda item: -item[1]["speedup"])
    columns = ["method", "drafted", "tokens a round", "speedup", "behind the prompt", "rollback, path"]
    return markdown([*columns, "rollback, all", "predicted"], (row(name, one) for name, one in found))


def peers(folder: Path) -> str:
    def row(name: str, one: Json) -> list[str]:
        quartiles = f"{number(one['first_quartile'])}-{number(one['third_quartile'])}"
        return [name, f"{number(one['median'])} ({quartiles})"]

    ratios = read(folder, "peers.json")["ratios"]
    return markdown(["ours / theirs", "times as fast"], (row(name, one) for name, one in ratios.items()))


# `compare_speed.py`, `product_forms.py`, `overlap.py`


def plain(folder: Path) -> str:
    speed = read(folder, "speed.json")
    rows = [
        ["plain decoding", f"{speed['plain']['ms_per_token']:.1f} ms a token"],
        ["two threads that read memory meanwhile", f"{speed['plain']['gb_per_second']:.1f} GB/s"],
        ["reading the weights once at that pace", f"{speed['plain']['floor_ms']:.1f} ms"],
        ["plain decoding over that reading, median of pairs", number(speed["plain"]["ratio"])],
        [
            "transformers and torch over plain decoding, the same prompts, median of pairs",
            f"{speed['torch']['torch_ms_per_token']:.1f} ms / {speed['torch']['ms_per_token']:.1f} ms: "
            f"{number(speed['torch']['speedup'])}",
        ],
    ]
    rows += [
        [
            f"a round of {one['nodes']} nodes, T={one['temperature']:g}, over its forwards measured alone",
            number(one["ratio"]),
        ]
        for one in speed["rounds"]
    ]
    return markdown(["what", "measured"], rows)


def forwards(folder: Path) -> str:
    times = read(folder, "speed.json")["forwards"]
    names = {"blocks": "weights in blocks too", "without": "without"}
    rows = ([names[form], *(number(value, 1) for value in row.values())] for form, row in times.items())
    return markdown(["tokens of one forward", *times["blocks"]], rows)


def capacity(folder: Path) -> str:
    rows = (
        [f"{one['slots']:,}", number(one["ms_1"], 1), number(one["ms_8"], 1), number(one["mb"], 0)]
        for one in read(folder, "speed.json")["capacity"]
    )
    return markdown(["slots", "plain token, ms", "8 tokens, ms", "both contexts, MB"], rows)


def products(folder: Path) -> str:
    times = read(folder, "products.json")["milliseconds"]
    rows = ([form, *(number(value, 1) for value in row.values())] for form, row in times.items())
    return markdown(["form", *times["library"]], rows)


def overlap(folder: Path) -> str:
    found = read(folder, "overlap.json")["methods"]
    keys = ("tokens_per_round", "fused", "split", "simulated_1", "simulated_2")
    digits = (2, 1, 1, 1, 1)
    rows = (
        [name, *(number(one.get(key), n) for key, n in zip(keys, digits, strict=True))] for name, one in found.items()
    )
    return markdown(["", "tokens a round", "fused", "split", "simulated, one device", "simulated, two"], rows)


# `serve_speed.py`


def serve(folder: Path) -> str:
    """A row for each number of clients: tokens a second and seconds until the first token."""
    found = read(folder, "serve.json")
    rows = []
    for alone, served in zip(found["generate"], found["serve"], strict=True):
        speeds, firsts = ([one[key] for one in (alone, served)] for key in ("tokens_per_second", "first_token_seconds"))
        shares = [number(speeds[1] / speeds[0]), *map(number, firsts), number(served["slowest_first_token_seconds"])]
        rows.append([str(served["clients"]), *(number(speed, 1) for speed in speeds), *shares])
    headings = [
        "tokens/s, `generate`",
        "`serve`",
        "their ratio",
        "first token, s, `generate`",
        "`serve`",
        "its slowest",
    ]
    return markdown(["clients", *headings], rows)


TABLES: Mapping[str, Callable[[Path], str]] = {
    "summary": summary,
    "fixed lengths": fixed_lengths,
    "stopped": stopped,
    "methods": methods,
    "peers": peers,
    "plain": plain,
    "forwards": forwards,
    "capacity": capacity,
    "products": products,
    "overlap": overlap,
    "serve": serve,
}
"""By the name that stands in a document's marker."""
