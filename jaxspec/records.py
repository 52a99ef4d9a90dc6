"""Results as JSON: values that it can state, the one way to write a file of them, and what machine they belong to."""

import json
import math
import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

_LIBRARIES = ("jaxspec", "jax", "jaxlib", "flax", "numpy")


def write(file: str | os.PathLike[str], value: Any, indent: int | None = 1) -> None:
    """Writes a value as a JSON file; numbers that are not finite become null."""
    Path(file).write_text(json.dumps(finite(value), indent=indent, allow_nan=False) + "\n", encoding="utf-8")


def write_fields(file: str | os.PathLike[str], fields: Mapping[str, Any]) -> None:
    """Writes an object as JSON, one field a line, so that a version's differences can be read.

    Raises:
        ValueError: A number that is not finite.
    """
    lines = (f"  {json.dumps(key)}: {json.dumps(value, allow_nan=False)}" for key, value in fields.items())
    Path(file).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def save_result(file: str | os.PathLike[str], settings: Mapping[str, Any], **found: Any) -> None:
    """Writes what a script found as JSON, with its settings, the machine and the versions."""
    stated = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
    write(file, {"settings": stated, **found, "machine": machine_description(), "versions": library_versions()})


def finite(value: Any) -> Any:
    """A value as JSON can state it: numbers that are not finite are None, numpy's are Python's, tuples are lists."""
    if isinstance(value, Mapping):
        return {str(key): finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry) for entry in value]
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    return value.item() if isinstance(value, np.generic) else value


def machine_description() -> str:
    """One line on this machine: processor, cores in reach, system and jax's devices."""
    import jax  # a profile is read and planned with without starting jax's backend

    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = (line.partition(":")[2] for line in info.read_text().splitlines() if line.startswith("model name"))
        cpu = next(names, cpu).strip()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    kinds = [device.device_kind for device in jax.devices()]
    devices = ", ".join(f"{kinds.count(kind)} x {kind}" for kind in dict.fromkeys(kinds))
    return f"{cpu}, {cores} cores, {platform.system()} {platform.release()}; jax: {jax.default_backend()}, {devices}"


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that decide the measured times; those not installed are left out."""
    versions = {"python": platform.python_version()}
    for name in _LIBRARIES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return versions
