"""docs/proofs.md names tests that exist and leaves nothing out; every proof of the Makefile records
that it passed; every long test is in a target."""

import ast
import re
import subprocess
from pathlib import Path

import pytest
from proof_record import COVERS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "proofs.md").read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)
ITEMS = re.findall(r"^\| H(\d+) \|(.*)\|$", PAGE, re.MULTILINE)


def functions_of(path: Path) -> set[str]:
    """Names of the test functions of a file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("file", sorted({file for file, _ in NAMED}))
def test_every_test_named_there_exists(file: str) -> None:
    assert {name for path, name in NAMED if path == file} <= functions_of(ROOT / file)


def test_every_item_of_the_checklist_has_a_line_with_a_test_or_a_reason() -> None:
    assert [int(number) for number, _ in ITEMS] == list(range(1, 45))
    for number, line in ITEMS:
        assert re.search(r"`tests/[\w/]+\.py::\w+`|not built yet", line), f"H{number}"


def test_every_proof_is_on_the_page() -> None:
    here = Path(__file__).parent
    files = {f"tests/proofs/{path.name}" for path in here.glob("test_*.py")}
    assert files - {"tests/proofs/test_proofs_page.py"} <= {file for file, _ in NAMED}


RECIPES = dict(re.findall(r"^([\w-]+):.*\n((?:\t.*\n)*)", (ROOT / "Makefile").read_text(), re.M))
PROOFS = {name for name in RECIPES if name.startswith("prove") and name != "prove-status"}


@pytest.mark.parametrize("target", sorted(PROOFS | COVERS.keys()))
def test_each_proof_ends_with_its_record_and_covers_what_exists(target: str) -> None:
    assert "$(PASSED) $@" in RECIPES[target].splitlines()[-1]
    assert all((ROOT / path).exists() for path in COVERS[target])


HAS_LONG = re.compile(r"^from sweeps import|mark\.long\b|getoption\(.(--)?long", re.M)


def test_every_file_with_long_tests_is_run_at_length_by_a_target() -> None:
    shown = subprocess.run(
        ["make", "--dry-run", "rehearse-gpu", *sorted(PROOFS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    lines = shown.stdout.replace("\\\n", " ").splitlines()
    words = {
        each for line in lines if "pytest" in line and "--long" in line for each in line.split()
    }
    files = [path for path in ROOT.glob("tests/**/test_*.py") if HAS_LONG.search(path.read_text())]
    named = {ROOT / word for word in words if word.startswith("tests/")}
    assert len(files) > 70
    assert [path for path in files if not named & {path, *path.parents}] == []
