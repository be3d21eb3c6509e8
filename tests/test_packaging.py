"""Both wheels contain exactly their packages, and all entry points of pyproject.toml exist."""

import ast
import re
from pathlib import Path

import pytest
import yaml
from test_dependencies import OF_WORKSHOP, PROJECT, ROOT, WORKSHOP, parse

PACKAGES = {"eagle3_jax", "pallas_kernels", "convert", "serve"}
COMMANDS = {
    name: (folder, entry_point)
    for folder, project in ((ROOT, PROJECT), (WORKSHOP, OF_WORKSHOP))
    for name, entry_point in project["project"]["scripts"].items()
}
FOLDERS = {package: ROOT / package for package in PACKAGES} | {
    "eagle3_tools": WORKSHOP / "eagle3_tools"
}


def test_every_package_of_the_root_ships() -> None:
    on_disk = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}
    shipped = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert on_disk == set(shipped) == PACKAGES


def test_product_and_workshop_have_one_version() -> None:
    version = PROJECT["project"]["version"]
    assert OF_WORKSHOP["project"]["version"] == version
    assert OF_WORKSHOP["project"]["dependencies"] == [f"eagle3-jax=={version}"]
    assert PROJECT["project"]["optional-dependencies"]["tools"] == [f"eagle3-jax-tools=={version}"]
    newest = re.search(r"^## \[(.+)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert newest and newest[1] == version == citation["version"]


def test_workflows_run_commands_that_exist() -> None:
    made = (ROOT / "Makefile").read_text()
    for path in (ROOT / ".github").rglob("*.y*ml"):
        content = yaml.safe_load(path.read_text())
        for job in content.get("jobs", {}).values():
            lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
            for name, *words in map(str.split, lines):
                assert name != "make" or f"\n{words[0]}: " in made
                assert not name.startswith(".") or (ROOT / name).is_file()


@pytest.mark.parametrize("package", sorted(FOLDERS))
def test_every_package_is_typed(package: str) -> None:
    assert (FOLDERS[package] / "py.typed").is_file()


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for folder in FOLDERS.values() for path in folder.rglob("*.py")}
    assert not [str(folder) for folder in folders if not (folder / "__init__.py").is_file()]


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_has_its_function(command: str) -> None:
    folder, entry_point = COMMANDS[command]
    module, _, function = entry_point.partition(":")
    path = folder / Path(*module.split(".")).with_suffix(".py")
    assert function in {node.name for node in parse(path).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize(
    ("project", "packages", "files"),
    [
        (ROOT, PACKAGES, {"serve/py.typed", "serve/page/index.html", "serve/page/page.js"}),
        (WORKSHOP, {"eagle3_tools"}, {"eagle3_tools/kernel_model/records/gfx950.json"}),
    ],
    ids=["product", "workshop"],
)
def test_a_wheel_holds_exactly_its_packages(
    project: Path, packages: set[str], files: set[str]
) -> None:
    wheel = pytest.importorskip("hatchling.builders.wheel")
    found = [f.distribution_path for f in wheel.WheelBuilder(str(project)).recurse_included_files()]
    assert {path.partition("/")[0] for path in found} == packages
    assert files <= set(found)
    assert not [path for path in found if "__pycache__" in path]
