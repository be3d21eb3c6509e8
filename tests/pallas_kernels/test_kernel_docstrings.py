"""Every kernel says what a program of it is: grid, blocks, what limits it, units."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import pallas_kernels

ROOT = Path(pallas_kernels.__path__[0])
Function = tuple[Path, ast.FunctionDef]


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(ROOT.rglob("*.py")):
        if path.name != "cases.py":
            yield path, ast.parse(path.read_text(encoding="utf-8"))


def functions() -> Iterator[Function]:
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                yield path, node


def untyped(function: ast.FunctionDef) -> int:
    """How many of its arguments have no type: refs."""
    every = (*function.args.args, *function.args.kwonlyargs)
    return sum(isinstance(a.annotation, ast.Name) and a.annotation.id == "Any" for a in every)


def bodies() -> set[str]:
    """Names of what is launched: first arguments of `launch`, of partials too, and RowKernels'."""
    found = set()
    for _, tree in trees():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                place = {"launch": 0, "launch_tiles": 0, "RowKernel": 1}.get(call.func.id)
                if place is not None and len(call.args) > place:
                    found |= names(call.args[place])
    return found


def names(argument: ast.expr) -> set[str]:
    if isinstance(argument, ast.Call):
        return names(argument.args[0])
    return {argument.id} if isinstance(argument, ast.Name) else set()


# What `launch` gets from a caller is named there.
PASSED_ON = {"kernel"}
INDIRECT = {"attend_part", "_route", "_choose", "kernel"}


KERNELS = (bodies() - PASSED_ON) | INDIRECT


def is_kernel(function: ast.FunctionDef) -> bool:
    """By name and by what it takes: refs."""
    return function.name in KERNELS and untyped(function) > 0


def test_kernels_are_found() -> None:
    assert len([1 for _, function in functions() if is_kernel(function)]) >= 23


@pytest.mark.parametrize(
    "function",
    [pytest.param(f, id=f"{p.parent.name}.{f.name}") for p, f in functions() if is_kernel(f)],
)
def test_a_kernel_says_grid_blocks_limit_and_units(function: ast.FunctionDef) -> None:
    text = ast.get_docstring(function) or ""
    assert [word for word in ("Grid:", "Blocks:", "Limit:", "Units:") if word not in text] == []


def test_functions_on_refs_say_what_these_are() -> None:
    """Three or more arguments without a type want words."""
    silent = [
        f"{path.name}: {function.name}"
        for path, function in functions()
        if untyped(function) >= 3 and not ast.get_docstring(function)
    ]
    assert silent == []
