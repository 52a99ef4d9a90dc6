"""What a pair's folder holds: `pair.json`, a JSON object with the keys

"target"        a path in the folder or elsewhere, a hub id, or a name of `fetching.SOURCES`
"draft"         the same, or {"early_exit": layers}; a folder of weights without a tokenizer has the target's
"kept_ids"      optional: path of a `.npy` file in the folder, the tokens that the draft's vocabulary is reduced to
"copying"       optional: the shares of `networks.Copying`, which then wraps the draft
"profiles"      optional: paths of `Profile`s in the folder, measured at different temperatures
"hrad"          optional: paths of H-RAD heads in the folder, trained at different temperatures (see `heads`)
"description"   optional: one line
"""

import json
from pathlib import Path
from typing import Any

NAME = "pair.json"

_LISTS = ("profiles", "hrad")


def read(file: Path) -> dict[str, Any]:
    """The entries of a `pair.json`.

    Raises:
        ValueError: Not JSON, a key missing or unknown, or of another type.
    """
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from error
    if not isinstance(entries, dict) or not {"target", "draft"} <= entries.keys():
        raise ValueError(f"{file} must be a JSON object with the keys target and draft.")
    known = {"target", "draft", "kept_ids", "copying", "profiles", "hrad", "description"}
    if unknown := entries.keys() - known:
        raise ValueError(f"{file} has unknown keys {sorted(unknown)}; known: {', '.join(sorted(known))}.")
    for key, value in entries.items():
        is_exit = key == "draft" and value == {"early_exit": _exit_layers(value)}
        is_list = key in _LISTS and isinstance(value, list) and all(isinstance(entry, str) for entry in value)
        is_numbers = key == "copying" and isinstance(value, list) and all(isinstance(one, float) for one in value)
        is_text = key not in (*_LISTS, "copying") and isinstance(value, str)
        if not (is_text or is_list or is_exit or is_numbers):
            kinds = {"draft": 'a string or {"early_exit": layers}', "copying": "a list of numbers such as 0.5"}
            kinds |= dict.fromkeys(_LISTS, "a list of strings")
            raise ValueError(f"{file}: {key} is {value!r}, but {kinds.get(key, 'a string')} is needed.")
    return entries


def _exit_layers(draft: Any) -> int | None:
    """The number in `{"early_exit": number}`; None for anything else."""
    layers = draft.get("early_exit") if isinstance(draft, dict) else None
    return layers if isinstance(layers, int) else None
