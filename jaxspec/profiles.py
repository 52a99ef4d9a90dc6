"""A profile: what was measured of a pair of models on a machine, which is all that the planner knows.

It holds the acceptance of a child by its rank and the times of target and draft steps by their size, with where they
came from, and is written as JSON, one field a line.
"""

import json
import math
import operator
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec import records

FORMAT = 1
"""Version of the JSON format."""


SUM_TOLERANCE = 1e-6
"""By how much the acceptances of one parent's children may exceed 1 in sum."""


@dataclass(frozen=True)
class Profile:
    """Measured acceptance and step times; equal to another by value.

    Attributes:
        acceptance: `[B]` probability that the child of each rank is the accepted one, or `[D, B]` by its parent's depth
            (row 0: the root's children). It is unconditional: "the siblings before it failed" is in it, so that a
            row's sum and its rejection make 1 (SEQUOIA, appendix E). Lists and arrays are stored as tuples.
        verify_ms: Milliseconds of one target forward by its number of tokens; 1 must be among them.
        draft_ms: Milliseconds of one draft forward by its number of tokens.
        rejection: Probability that no child is accepted, one number or `[D]`.
        standard_errors: Of the acceptance, shaped like it.
        counts: How many positions the acceptance is a mean over, one number or `[D]`.
        temperature: The target's temperature.
        draft_temperature: The draft's; None if it was the target's.
        target: Name of the target.
        draft: Name of the draft.
        protocol: How the acceptance was measured (prompts, prompt tokens, new tokens, tree, …). JSON values.
        machine: The machine, as from `machine_description`.
        versions: Of the libraries, as from `library_versions`.
        date: When it was measured.
        overhead_ms: Milliseconds that a round with a draft costs beyond its steps.
        calibration: `[2, n, 2]` share of the drafted tokens and their acceptance in n equal steps of the draft's
            confidence from 0 to 1, behind a rejection and elsewhere (`measure.calibration`); None where not measured.

    Raises:
        ValueError: Names the field and the entry that is not what it must be.
    """

    acceptance: tuple[Any, ...]
    verify_ms: Mapping[int, float]
    draft_ms: Mapping[int, float]
    rejection: float | tuple[float, ...] | None = None
    standard_errors: tuple[Any, ...] | None = None
    counts: int | tuple[int, ...] | None = None
    temperature: float = 0.0
    draft_temperature: float | None = None
    target: str = ""
    draft: str = ""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""
    overhead_ms: float = 0.0
    calibration: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        acceptance = check_acceptance(self.acceptance)
        for row, total in enumerate(np.atleast_1d(acceptance.sum(-1))):
            if total > 1 + SUM_TOLERANCE:
                where = f"row {row} of acceptance" if acceptance.ndim == 2 else "acceptance"
                raise ValueError(f"{where} sums to {total}, but at most one child is accepted: the sum is at most 1")
        changes: dict[str, Any] = {
            "acceptance": _tuples(acceptance),
            "verify_ms": _times("verify_ms", self.verify_ms),
            "draft_ms": _times("draft_ms", self.draft_ms),
            "protocol": _json_values("protocol", self.protocol),
            "versions": _json_values("versions", self.versions),
        }
        if 1 not in changes["verify_ms"]:
            raise ValueError(
                f"verify_ms has no entry for n=1, only for {list(changes['verify_ms'])}: "
                "the time of one plain step is what every speedup is over"
            )
        if changes["verify_ms"][1] == 0:
            raise ValueError("verify_ms[1] is 0, but a plain step takes time: give its milliseconds")
        rows = acceptance.shape[:-1]
        for name, shapes, upper in (
            ("rejection", ((), rows), 1.0),
            ("standard_errors", (acceptance.shape,), math.inf),
            ("counts", ((), rows), math.inf),
            ("temperature", ((),), math.inf),
            ("draft_temperature", ((),), math.inf),
            ("overhead_ms", ((),), math.inf),
        ):
            if getattr(self, name) is not None:
                changes[name] = _numbers(name, getattr(self, name), shapes, upper)
        if self.calibration is not None:
            changes["calibration"] = _calibration(self.calibration)
        for name, value in changes.items():
            object.__setattr__(self, name, value)

    def verify_time(self, n: int) -> float:
        """Milliseconds of one target forward over n tokens.

        Linear between measured points; before the first point its value; behind the last one the last segment's slope
        goes on, but never downwards; one point alone means a constant (SEQUOIA's model of the draft).

        Raises:
            ValueError: n is below 1.
        """
        return _interpolate(self.verify_ms, n)

    def draft_time(self, width: int) -> float:
        """Milliseconds of one draft forward over `width` tokens, interpolated as in `verify_time`."""
        return _interpolate(self.draft_ms, width)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the profile as JSON, one field a line. `Profile.load` reads an equal one."""
        own = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        records.write_fields(path, {"format": FORMAT} | own)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Profile":
        """The profile in a JSON file. Only the format's version, the acceptance and the times must be there.

        Raises:
            ValueError: Not JSON, another version of the format, or a key missing, unknown or not a number of tokens.
        """
        try:
            entries = json.loads(Path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not a profile: it is not JSON ({error})") from error
        if not isinstance(entries, dict):
            raise ValueError(f"{path} is not a profile: a JSON object is needed, not a {type(entries).__name__}")
        version = entries.pop("format", None)
        if version != FORMAT:
            raise ValueError(f"{path} has format {version}, but this jaxspec reads format {FORMAT}: measure it again")
        known = [entry.name for entry in fields(cls)]
        unknown = [key for key in entries if key not in known]
        missing = [key for key in ("acceptance", "verify_ms", "draft_ms") if key not in entries]
        if unknown or missing:
            raise ValueError(f"{path} is not a profile: missing keys {missing}, unknown keys {unknown}; known {known}")
        for name in ("verify_ms", "draft_ms"):
            entries[name] = _integer_keys(name, entries[name])
        return cls(**entries)


def check_acceptance(acceptance: Any) -> np.ndarray:
    """`[B]` or `[D, B]` float64 acceptance, checked entry by entry.

    The sum of a row is left alone: the planner's mathematics holds whatever it is.

    Raises:
        ValueError: Empty, ragged, not one- or two-dimensional, or an entry outside [0, 1] or not finite; names it.
    """
    try:
        values = np.array(acceptance, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"acceptance must be [B] or [D, B] numbers without gaps, but is {acceptance!r}") from error
    if values.ndim not in (1, 2) or values.size == 0:
        raise ValueError(f"acceptance has shape {values.shape}, but must be [B], or [D, B] by depth, and not empty")
    for index in np.argwhere(~((values >= 0) & (values <= 1))):
        where = ", ".join(map(str, index))
        raise ValueError(f"acceptance[{where}] is {values[tuple(index)]}, but a probability lies in [0, 1]")
    return values


def _interpolate(times: Mapping[int, float], n: int) -> float:
    if n < 1:
        raise ValueError(f"a forward over {n} tokens has no time: at least 1 is needed")
    sizes = list(times)
    if n <= sizes[-1] or len(sizes) == 1:
        return float(np.interp(n, sizes, list(times.values())))
    (before, last) = sizes[-2:]
    slope = (times[last] - times[before]) / (last - before)
    return times[last] + max(slope, 0.0) * (n - last)


def _times(name: str, times: Mapping[int, float]) -> dict[int, float]:
    """Times by size in ascending order, as Python numbers. A time of 0 is a step that costs nothing."""
    if not isinstance(times, Mapping) or not times:
        raise ValueError(f"{name} must be a non-empty dict of milliseconds by number of tokens, but is {times!r}")
    checked = {}
    for size, time in times.items():
        try:
            size, time = operator.index(size), float(time)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{name} needs integers as keys and numbers as values, not {size!r}: {time!r}") from error
        if size < 1 or not 0 <= time < math.inf:
            raise ValueError(f"{name}[{size}] is {time}, but sizes start at 1 and milliseconds are finite, 0 or more")
        checked[size] = time
    return dict(sorted(checked.items()))


def _integer_keys(name: str, times: Any) -> dict[int, Any]:
    if not isinstance(times, dict):
        raise ValueError(f"{name} must be an object of milliseconds by number of tokens, but is {times!r}")
    for key in times:
        if not key.isdecimal():
            raise ValueError(f"{name} has the key {key!r}, but keys are numbers of tokens")
    return {int(key): time for key, time in times.items()}


def _numbers(name: str, value: Any, shapes: Sequence[tuple[int, ...]], upper: float) -> Any:
    """A number or nested tuples of them, each in [0, upper] and finite, of one of the given shapes."""
    try:
        array = np.array(value)
        if not (np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)):
            raise ValueError(f"of type {array.dtype}")
    except ValueError as error:
        raise ValueError(f"{name} must be numbers without gaps, but is {value!r}") from error
    if array.shape not in shapes:
        raise ValueError(f"{name} has shape {array.shape}, but one of {list(dict.fromkeys(shapes))} is needed")
    if not np.all(np.isfinite(array) & (array >= 0) & (array <= upper)):
        raise ValueError(f"{name} is {value!r}, but its numbers are finite, 0 or more and at most {upper}")
    return _tuples(array)


def _calibration(value: Any) -> Any:
    """Shares that make 1, and acceptances, of one or more steps of both kinds."""
    steps = np.shape(value)[1] if np.ndim(value) == 3 else 1
    checked = _numbers("calibration", value, ((2, max(steps, 1), 2),), 1.0)
    for kind, total in enumerate(np.asarray(checked)[..., 0].sum(1)):
        if abs(total - 1) > SUM_TOLERANCE:
            raise ValueError(
                f"the shares of calibration[{kind}] sum to {total}, but each token has one confidence: to 1"
            )
    return checked


def _tuples(array: np.ndarray) -> Any:
    """An array as nested tuples of Python numbers."""

    def convert(value: Any) -> Any:
        return tuple(map(convert, value)) if isinstance(value, Iterable) else value

    return convert(array.tolist())


def _json_values(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    """A dict as JSON would give it back, so that a profile equals its file (tuples become lists)."""
    try:
        return dict(json.loads(json.dumps(dict(value), allow_nan=False)))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a dict of JSON values, but is {value!r} ({error})") from error
