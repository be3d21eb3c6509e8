"""The wheel holds the four packages and nothing else, and what pyproject.toml names exists."""

import ast
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"eagle3_jax", "pallas_kernels", "convert", "serve"}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_package_of_the_root_ships() -> None:
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    shipped = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert on_disk == set(shipped) == PACKAGES


@pytest.mark.parametrize("package", sorted(PACKAGES))
def test_every_package_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


@pytest.mark.parametrize("command", sorted(PROJECT["project"]["scripts"]))
def test_every_command_has_its_function(command: str) -> None:
    module, _, function = PROJECT["project"]["scripts"][command].partition(":")
    path = ROOT / Path(*module.split(".")).with_suffix(".py")
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_wheel_holds_exactly_the_four_packages() -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    files = [f.distribution_path for f in wheel.WheelBuilder(str(ROOT)).recurse_included_files()]
    assert {path.partition("/")[0] for path in files} == PACKAGES
    assert {"serve/py.typed", "serve/page/index.html", "serve/page/page.js"} <= set(files)
    assert not [path for path in files if "__pycache__" in path]
