"""Imports point down: serve > convert > eagle3_jax > pallas_kernels."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLOORS = ("pallas_kernels", "eagle3_jax", "convert", "serve")
NOT_BELOW = {
    "pallas_kernels": {"flax", "transformers", "fastapi", "argparse", "torch"},
    "eagle3_jax": {"transformers", "fastapi", "uvicorn", "argparse", "torch", "safetensors"},
    "convert": {"fastapi", "uvicorn", "torch"},
    "serve": set(),
}
EXEMPT = {
    "convert/equivalence": {"torch"},
    "pallas_kernels/aot": {"argparse"},
    "pallas_kernels/bench": {"argparse", "torch"},
}
"""Commands, and comparisons with torch; nothing else imports it."""


def imported(path: Path) -> set[str]:
    """Top-level names of the packages that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute here"
            names.add((node.module or "").partition(".")[0])
    return names


def exempt(path: Path) -> set[str]:
    """What this file may import all the same."""
    return EXEMPT.get(str(path.parent.relative_to(ROOT)), set())


@pytest.mark.parametrize("floor", FLOORS)
def test_imports_point_down(floor: str) -> None:
    above = set(FLOORS[FLOORS.index(floor) + 1 :])
    files = sorted((ROOT / floor).rglob("*.py"))
    assert files
    wrong = {
        str(path.relative_to(ROOT)): sorted(found)
        for path in files
        if (found := imported(path) & (above | NOT_BELOW[floor] | {"tests"}) - exempt(path))
    }
    assert not wrong
