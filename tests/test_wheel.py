"""A wheel holds every module and the shipped models; both places of these are found, in the package and beside it."""

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import jaxspec
from jaxspec.pairs import loading, pair_file

ROOT = Path(__file__).parents[1]


def test_the_wheel_is_told_of_models_and_modules():
    """The mapping that hatchling reads: `models/` lands in the package."""
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert set(wheel["only-include"]) == {"jaxspec", "models"}
    assert wheel["sources"] == {"models": "jaxspec/models"}
    folders = {file.parent for file in (ROOT / "jaxspec").rglob("*.py")}
    assert all((folder / "__init__.py").is_file() for folder in folders), "a folder without __init__.py is no package"


def test_a_built_wheel_holds_them(tmp_path):
    pytest.importorskip("hatchling", reason="hatchling builds the wheel")
    words = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(words, cwd=ROOT, check=True, capture_output=True)
    names = set(zipfile.ZipFile(next(tmp_path.glob("*.whl"))).namelist())
    modules = {str(file.relative_to(ROOT)) for file in (ROOT / "jaxspec").rglob("*.py")}
    models = {f"jaxspec/{file.relative_to(ROOT)}" for file in (ROOT / "models").rglob(pair_file.NAME)}
    assert models
    assert modules | models <= names


@pytest.mark.parametrize("place", ["wheel", "checkout"])
def test_shipped_models_are_found_by_the_packages_place(place, tmp_path, monkeypatch):
    package = tmp_path / "jaxspec"
    models = (package if place == "wheel" else tmp_path) / "models"
    name = next(iter(loading.PAIRS))
    (models / name).mkdir(parents=True)
    (models / name / pair_file.NAME).write_text("{}")
    monkeypatch.setattr(jaxspec, "__file__", str(package / "__init__.py"))
    assert loading.shipped(name) == models / name
    assert loading.shipped("another") is None


def test_this_checkout_ships_its_models():
    for name in loading.PAIRS:
        assert loading.shipped(name) == ROOT / "models" / name
