"""The tables of `ablation.py` and of the studies beside it, each a function of the folder with the JSON files."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from result_tables import Json, markdown, number, read

NAME = re.compile(r"ablation-(?P<arms>\w+)-(?P<task>\w+)-t(?P<temperature>[\d.]+)\.json")
SIMULATED = re.compile(r"simulated_(?P<times>\w+)_1")
MEASURED = {
    "tokens a round": ("tokens_per_round", 2),
    "accepted run": ("mean_accepted_run", 2),
    "rollback, path": ("rollback_path", 2),
    "rollback, all": ("rollback_all", 2),
}
PAIR = Path(__file__).parents[2] / "models" / "smollm2-135m"
FLAT_MS = 30.0
"""A target step of the simulated devices, as `ablation.py` has it."""

APART = ("aligned", "parts", "epsilons", "branches")
"""Arms with a table of their own; what is left are all methods on one task at one temperature."""


def label(arm: Json) -> str:
    """An arm's name, with what it was set to where that is not in its name."""
    names = {"SpecBranch": "SpecBranch", "SpecBranch, confidence": "– confidence alone"}
    names["SpecBranch, adaptive width"] = "– adaptive width"
    name = arm["arm"]
    if name not in names:
        return name
    width = ", all tried" if arm.get("width") == "FullWidth" else ""
    return f"{names[name]}, ε {arm['epsilon']:g}, k_max {arm['max_branches']}{width}"


def simulated(result: Json) -> list[str]:
    """The keys of the speedups on one device. An earlier version's step times of this machine are no one's today."""
    keys = [key for key in result["arms"][0] if SIMULATED.fullmatch(key)]
    return keys if "overhead_ms" in result["settings"] else [key for key in keys if "machine" not in key]


def heading(key: str) -> str:
    """What a column of speedups is simulated with."""
    found = SIMULATED.fullmatch(key)
    assert found is not None
    times = found["times"]
    return "this machine" if times == "machine" else times.replace("flat_c", "c = ")


def overhead_ms(result: Json) -> float:
    """Milliseconds of a round beyond its forwards: what the file charges, or the profile of its temperature has."""
    settings = result["settings"]
    if "overhead_ms" in settings:
        return settings["overhead_ms"]
    return read(PAIR, f"profile-t{settings['temperature']:g}.json")["overhead_ms"]


def speedup(arm: Json, key: str, result: Json) -> float:
    """A simulated speedup with the round's overhead.

    Where the file was simulated without it, it is charged here: rounds follow one another, so that each takes so much
    longer, and a plain token takes FLAT_MS.
    """
    if "overhead_ms" in result["settings"]:
        return arm[key]
    return 1 / (1 / arm[key] + overhead_ms(result) / (FLAT_MS * arm["tokens_per_round"]))


def arms_table(results: Sequence[Json]) -> str:
    """One row an arm, of all results."""

    def cells(arm: Json, result: Json) -> list[str]:
        pairs = [(key, f"{key[:-1]}2") for key in simulated(result)]
        speedups = [" / ".join(number(speedup(arm, one, result)) for one in pair) for pair in pairs]
        return [label(arm), *(number(arm[key], digits) for key, digits in MEASURED.values()), *speedups]

    columns = ["", *MEASURED, *map(heading, simulated(results[0]))]
    return markdown(columns, (cells(arm, result) for result in results for arm in result["arms"]))


def groups(folder: Path) -> dict[tuple[str, str], list[Json]]:
    """The results of `ablation.py` by temperature and task, without those that stand apart.

    Raises:
        ValueError: A file's name does not say its task and temperature.
    """
    found: dict[tuple[str, str], list[Json]] = {}
    for file in sorted(folder.glob("ablation-*.json")):
        name = NAME.fullmatch(file.name)
        if name is None:
            raise ValueError(
                f"{file.name} must be named like ablation-methods-gsm8k-t0.json, by arms, task, temperature"
            )
        if name["arms"] not in APART:
            found.setdefault((name["temperature"], name["task"]), []).append(read(folder, file.name))
    return dict(sorted(found.items()))


def charged(results: Sequence[Json]) -> str:
    """How much was decoded, and what the simulated rounds of a table are charged."""
    settings = results[0]["settings"]
    return (
        f"{settings['num_prompts']} prompts, {settings['max_new_tokens']} new tokens; every simulated round is charged "
        f"its forwards and {overhead_ms(results[0]):.2g} ms of overhead."
    )


def ablations(folder: Path) -> str:
    tables = (
        f"### {task}, T = {t}\n\n{charged(results)}\n\n{arms_table(results)}"
        for (t, task), results in groups(folder).items()
    )
    return "\n\n".join(tables)


def aligned(folder: Path) -> str:
    results = [read(folder, "ablation-aligned-humaneval-t0.json")]
    return f"{charged(results)}\n\n{arms_table(results)}"


def parts(folder: Path) -> str:
    results = [read(folder, "ablation-parts-humaneval-t0.json")]
    return f"{charged(results)}\n\n{arms_table(results)}"


def settings(folder: Path) -> str:
    """SpecBranch's settings over PEARL, where they were chosen and where they were checked."""
    files = {"branch-settings-choice.json": "choice", "branch-settings-head.json": "choice"}
    files |= dict.fromkeys(("branch-settings.json", "branch-settings-t1.json"), "check")
    rows, seen = [], set()
    for file, part in files.items():
        found = read(folder, file)["settings_compared"]
        for one in found:
            pearl = next(other for other in found if other["temperature"] == one["temperature"])  # stands first
            setting, name = one["setting"], "PEARL"
            if setting["method"] != "pearl":
                name = f"k_max {setting['max_branches']}, ε {setting['epsilon']:g}, width {setting['width']}"
                name += ", head" if setting["has_head"] else ""
            keys = ("tokens_per_round", "rollback_path", "rollback_all")
            ratios = (
                f"{number(one['stats'][key])} ({number(one['stats'][key] / pearl['stats'][key])})" for key in keys
            )
            row = [part, f"{one['temperature']:g}", name]
            if tuple(row) not in seen:
                seen.add(tuple(row))
                rows.append([*row, *ratios])
    return markdown(["", "T", "setting", "tokens a round", "rollback, path", "rollback, all"], rows)


def beside_pearl(folder: Path) -> Iterable[tuple[str, Json, Json]]:
    """Every setting of SpecBranch with the PEARL of its task and temperature, and the aligned pair's."""
    found = [(f"{task}, T={t}", results) for (t, task), results in groups(folder).items()]
    found.append(("humaneval, T=0, aligned pair", [read(folder, "ablation-aligned-humaneval-t0.json")]))
    for title, results in found:
        arms = [arm for result in results for arm in result["arms"]]
        pearl = next(arm for arm in arms if arm["arm"] == "PEARL")
        yield from ((title, arm, pearl) for arm in arms if arm["arm"].startswith("SpecBranch"))


def rollback(folder: Path) -> str:
    """SpecBranch over PEARL: tokens, rollback of the path, rollback of all that was drafted."""
    keys = ("tokens_per_round", "rollback_path", "rollback_all")

    def cells(title: str, arm: Json, pearl: Json) -> list[str]:
        pairs = (f"{number(arm[key])} / {number(pearl[key])} = {number(arm[key] / pearl[key])}" for key in keys)
        return [title, label(arm), *pairs]

    columns = ["", "SpecBranch / PEARL", "tokens a round", "rollback, path", "rollback, all"]
    return markdown(columns, (cells(*one) for one in beside_pearl(folder)))


def branches(folder: Path) -> str:
    """PEARL and SpecBranch as its head is set, on HumanEval and with the aligned pair: both rollbacks, and the head."""
    keys = ("tokens_per_round", "rollback_path", "rollback_all")
    rows = []
    for title, arm, pearl in beside_pearl(folder):
        if arm["arm"] == "SpecBranch" and title.startswith("humaneval") and title not in [row[0] for row in rows]:
            none, some, everything = arm["tally"]["labels"]
            share = (none + everything) / (none + some + everything)
            pairs = (f"{number(pearl[key])} / {number(arm[key])}" for key in keys)
            rows.append([title, *pairs, f"{100 * share:.0f}%"])
    columns = [
        "PEARL / SpecBranch",
        "tokens a round",
        "rollback, path",
        "rollback, all",
        "rounds that the head decides",
    ]
    return markdown(columns, rows)


def deciding(folder: Path) -> str:
    """Of the rounds in which a head was asked, the share that each class won; first those of the heads' cards."""
    rows = []
    for name in ("hrad-t0", "hrad-t1"):
        found = read(PAIR / name, "hrad.json")["metrics"]["held_out"]
        rows.append(
            [f"{name}, held-out prompts", "", str(found["rounds"]), "", "", f"{100 * found['hard_share']:.0f}%"]
        )
    for title, arm, _ in beside_pearl(folder):
        if arm["arm"] == "SpecBranch":
            none, some, everything = arm["tally"]["labels"]
            rounds = none + some + everything
            shares = (none, everything, none + everything)
            rows.append([title, label(arm), str(rounds), *(f"{100 * share / rounds:.0f}%" for share in shares)])
    return markdown(["", "setting", "rounds", "none", "all", "the head decides"], rows)


def thresholds(folder: Path) -> str:
    """Tokens a round and rollback by ε: with the head, by the confidence, and as expected."""
    arms = read(folder, "ablation-epsilons-humaneval-t0.json")["arms"]
    heads = [arm for arm in arms if arm["arm"].startswith("H-RAD")]
    confident = [arm for arm in arms if not arm["arm"].startswith("H-RAD")]

    def pairs(of: Sequence[Json], tokens: str, rolled_back: str) -> list[str]:
        return [f"{number(arm[tokens])}, {number(arm[rolled_back])}" for arm in of]

    rows = [
        ["H-RAD", *pairs(heads, "tokens_per_round", "rollback_path")],
        ["confidence alone", *pairs(confident, "tokens_per_round", "rollback_path")],
        ["– expected", *pairs(confident, "predicted_tokens", "predicted_rollback")],
    ]
    return markdown(["ε", *(f"{arm['epsilon']:g}" for arm in confident)], rows)


def expected(folder: Path) -> str:
    """What is expected of branches beside what was measured, by the confidence alone, wherever both are known."""
    found = [(task, results) for (t, task), results in groups(folder).items() if t == "0"]
    found.append(("humaneval, 12 prompts", [read(folder, "ablation-branches-humaneval-t0.json")]))
    rows = []
    for task, results in found:
        for arm in (arm for result in results for arm in result["arms"]):
            if "predicted_tokens" in arm and arm["arm"] != "SpecBranch":
                name = "PEARL" if arm["arm"] == "PEARL" else f"ε {arm['epsilon']:g}, k_max {arm['max_branches']}"
                wanted = f"{number(arm['predicted_tokens'])}, {number(arm['predicted_rollback'])}"
                measured = f"{number(arm['tokens_per_round'])}, {number(arm['rollback_path'])}"
                rows.append([task, name, wanted, measured])
    return markdown(["task", "setting", "expected", "measured"], rows)


# `profile_shift.py`, `hrad_study.py`


def shift(folder: Path) -> str:
    """Tokens a round by where the tree was used (rows) and planned (columns); the expected ones in brackets."""
    trees = read(folder, "shift.json")["trees"]
    tables = []
    for size in dict.fromkeys(one["size"] for one in trees):
        found = {(one["used_on"], one["planned_on"]): one for one in trees if one["size"] == size}
        names = list(dict.fromkeys(used for used, _ in found))
        rows = (
            [used, *(f"{number(one['tokens_per_round'])} ({number(one['expected'])})" for one in row)]
            for used in names
            for row in [[found[used, planned] for planned in names]]
        )
        tables.append(markdown([f"{size} nodes", *names], rows))
    return "\n\n".join(tables)


def heads(folder: Path) -> str:
    accuracies = {
        "H-RAD": "hrad",
        "G classes": "lengths",
        "length as a number": "regression",
        "confidence": "confidence_balanced",
        "majority": "majority",
    }
    cuts = {"cut by H-RAD": "hrad", "without offsets": "argmax", "by confidence": "confidence", "none": "nothing"}

    def row(one: Json) -> list[str]:
        cells = [f"{number(one[key]['accuracy'])} / {number(one[key]['balanced'])}" for key in accuracies.values()]
        estimates = (one["cuts"][key] for key in cuts.values())
        cells += [f"{number(cut['tokens_per_round'])} / {number(cut['rollback'])}" for cut in estimates]
        return [one["head"], one["tried_on"], str(one["trained_on"]), *cells]

    records = read(folder, "hrad-study-t0.json")["heads"]
    return markdown(["head", "tried on", "rounds", *accuracies, *cuts], map(row, records))


TABLES: Mapping[str, Callable[[Path], str]] = {
    "ablations": ablations,
    "aligned": aligned,
    "parts": parts,
    "settings": settings,
    "branches": branches,
    "rollback": rollback,
    "deciding": deciding,
    "thresholds": thresholds,
    "expected": expected,
    "shift": shift,
    "heads": heads,
}
"""By the name that stands in a document's marker."""
