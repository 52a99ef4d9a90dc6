"""The floor plan, kept: which room may read which, no cycle, files and folders of a size that can be read.

Imports are read from the files with `ast`, those inside functions and under `TYPE_CHECKING` among them: a name that is
needed for an annotation alone is still a name that a reader has to look up. Nothing of jaxspec is imported here.
"""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE, TESTS, SCRIPTS = ROOT / "jaxspec", ROOT / "tests", ROOT / "scripts"

READS: dict[str, tuple[str, ...]] = {
    "base": (),
    "records": (),
    "documents": (),
    "tree": (),
    "sampling": ("base",),
    "cache": ("base",),
    "profiles": ("records", "documents"),
    "verify": ("sampling",),
    "decode": ("verify", "cache", "tree", "records"),
    "plan": ("tree", "profiles"),
    "networks": ("base", "records", "documents"),
    "measure": ("decode", "plan"),
    "pairs": ("networks", "profiles"),
    "catalogue": ("measure", "pairs"),
    "study": ("catalogue",),
    "train": ("measure", "networks"),
    "server": ("catalogue",),
    "cli": ("study", "train", "server"),
    "__main__": ("cli",),
}
"""Each room, and those that it may read besides its own files; and what these may read. Imports run upwards here."""

MAX_LINES, MAX_FILES = 350, 15
DOCSTRING_LINES = range(2, 5)
FOLDERS = sorted(file.parent for file in PACKAGE.rglob("__init__.py"))


class Import(NamedTuple):
    """One module named by another: which, the module named, and the place."""

    importer: str
    imported: str
    place: str


def test_every_room_is_in_the_table():
    rooms = {name.split(".")[1] for name in modules() if "." in name}
    assert rooms == set(READS), "The table READS of this test says what each room of jaxspec/ may read."


def test_no_import_runs_upwards():
    wrong = [
        f"{one.place}: {room(one.importer)} may not read {one.imported}; it may read "
        f"{', '.join(sorted(reach(room(one.importer)))) or 'nothing'} (READS)."
        for one in imports()
        if room(one.importer) and room(one.imported) not in {room(one.importer), *reach(room(one.importer))}
    ]
    assert not wrong, "\n".join(wrong)


def test_the_core_knows_no_network():
    """A case of the last one, said by name: whoever widens the table for a core room meets it here."""
    core = (
        "base",
        "records",
        "documents",
        "tree",
        "sampling",
        "cache",
        "profiles",
        "verify",
        "decode",
        "plan",
        "measure",
    )
    for name in core:
        assert "networks" not in reach(name), f"{name} is handed functions and arrays: it never imports a network."
    assert "decode" not in reach("networks"), "A network never imports decode."


def test_no_import_through_another_place():
    """Inside the package a module is named by where it lives, not by what `jaxspec.__getattr__` offers."""
    wrong = [
        f"{one.place}: {one.imported} is not a file of jaxspec; name the module where it lives."
        for one in imports()
        if one.imported not in modules()
    ]
    assert not wrong, "\n".join(wrong)


def test_no_cycle():
    found = cycle()
    assert not found, "These modules import one another in a circle: " + "; ".join(
        f"{one.place} imports {one.imported}" for one in found
    )


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_a_folder_says_what_lives_there(folder: Path):
    """What lives there, what it reads, what may import it: some three lines (`jaxspec` itself has the whole map)."""
    text = ast.get_docstring(parsed(folder / "__init__.py")) or ""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("    ")]  # but for a glossary
    place = f"{folder.relative_to(ROOT)}/__init__.py"
    assert lines, f"{place}: a docstring must say what lives there and what may import it."
    if folder != PACKAGE:
        assert len(lines) in DOCSTRING_LINES, f"{place}: {len(lines)} lines of docstring, where about three say it."
    files = [one.name for one in folder.iterdir() if one.suffix == ".py"]
    assert len(files) <= MAX_FILES, f"{folder.relative_to(ROOT)} has {len(files)} files, more than {MAX_FILES}."


def test_no_file_is_long():
    files = [file for folder in (PACKAGE, TESTS, SCRIPTS) for file in folder.rglob("*.py")]
    long = {str(file.relative_to(ROOT)): file.read_text(encoding="utf-8").count("\n") for file in files}
    wrong = [f"{file}:{lines}: over {MAX_LINES} lines: split it by ideas." for file, lines in long.items()]
    wrong = [message for message, lines in zip(wrong, long.values(), strict=True) if lines > MAX_LINES]
    assert not wrong, "\n".join(wrong)


def test_no_test_imports_another():
    """What two files of tests need stands in a helper right below `tests/`; the tests of one run without the other."""
    wrong = [
        f"{file.relative_to(ROOT)}:{line}: imports {name}; move what they share into a helper."
        for file in sorted(TESTS.rglob("*.py"))
        for line, name in imported_names(file)
        if any(part.startswith("test_") for part in name.split("."))
    ]
    assert not wrong, "\n".join(wrong)


def imported_names(file: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of all that a file imports, modules and what is in them."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


@functools.cache
def modules() -> dict[str, Path]:
    """The file of each module of jaxspec, by its dotted name; a folder's is its `__init__.py`."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@functools.cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


@functools.cache
def imports() -> tuple[Import, ...]:
    """Every import of jaxspec in jaxspec. The package's own file names all rooms, for type checkers alone: left out."""
    return tuple(one for name in modules() if name != "jaxspec" for one in imports_of(name))


def imports_of(importer: str) -> Iterator[Import]:
    file = modules()[importer]
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno}: a relative import; write the whole name."
            names = [named_module(node.module or "", alias.name) for alias in node.names]
        else:
            continue
        for name in dict.fromkeys(names):
            if name.split(".")[0] == "jaxspec":
                yield Import(importer, name, f"{file.relative_to(ROOT)}:{node.lineno}")


def named_module(module: str, name: str) -> str:
    """`from module import name`: the module that is meant, which is `module.name` where that is one."""
    inner = f"{module}.{name}"
    is_one = inner in modules() or (module == "jaxspec" and not name.startswith("__"))
    return inner if is_one else module


def room(module: str) -> str:
    """The folder or file right below `jaxspec/`; "" for the package itself, which anyone may read."""
    return module.split(".")[1] if "." in module else ""


@functools.cache
def reach(name: str) -> frozenset[str]:
    """All rooms that a room may read; the package itself ("") has no import of its own."""
    below = frozenset(READS.get(name, ())) | {""}
    return below.union(*(reach(other) for other in READS.get(name, ())))


def cycle() -> list[Import]:
    """The imports that lead from a module back to it; empty where there are none."""
    edges: dict[str, list[Import]] = {}
    for one in imports():
        edges.setdefault(one.importer, []).append(one)
    done: set[str] = set()

    def search(module: str, path: list[Import]) -> list[Import]:
        on_path = [one.importer for one in path]
        if module in on_path:
            return path[on_path.index(module) :]
        if module in done:
            return []
        for one in edges.get(module, ()):
            if found := search(one.imported, [*path, one]):
                return found
        done.add(module)
        return []

    return next((found for module in modules() if (found := search(module, []))), [])
