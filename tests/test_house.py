"""Limits on the size of folders, files and functions, and unique names."""

import ast
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from test_dependencies import ROOT, parse

PRODUCT = ("pallas_kernels", "eagle3_jax", "convert", "serve")
PACKAGES = (*PRODUCT, "tools")
MODULES_A_FOLDER = 24
LINES_A_FILE = 500
LINES_A_FUNCTION = 50
ONE_MEANING = (
    *("Plan", "Tiles", "Notify", "Choice", "Side", "Message", "Rows", "Report"),
    *("Pair", "Batch", "Scheme", "Observer", "OneLineParser"),
)
"""Names that once had several meanings; each may be defined in one module only."""


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_folders_are_seen_at_once() -> None:
    sizes = Counter(name_of(path.parent) for path in python_files(*PACKAGES))
    large = {folder: size for folder, size in sizes.items() if size > MODULES_A_FOLDER}
    assert not large, f"more than {MODULES_A_FOLDER} modules in a folder: {large}"


def test_files_are_short() -> None:
    lines = {name_of(p): len(p.read_bytes().splitlines()) for p in python_files(*PACKAGES, "tests")}
    long = {name: count for name, count in lines.items() if count > LINES_A_FILE}
    assert not long, f"more than {LINES_A_FILE} lines in a file: {long}"


def functions(path: Path) -> Iterator[tuple[str, int]]:
    """Yield name and line count, without the docstring, of every function except kernels ("Grid" in
    the docstring)."""
    kernels = path.is_relative_to(ROOT / "pallas_kernels")
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False) or ""
            if not (kernels and "Grid" in text):
                assert node.end_lineno is not None
                described = len(text.splitlines())
                yield f"{name_of(path)}:{node.name}", node.end_lineno - node.lineno + 1 - described


def test_functions_are_short() -> None:
    found = dict(item for path in python_files(*PACKAGES) for item in functions(path))
    long = {name: lines for name, lines in found.items() if lines > LINES_A_FUNCTION}
    assert not long, f"more than {LINES_A_FUNCTION} lines in a function: {long}"


def definitions(tree: ast.Module) -> Iterator[str]:
    """Yield the names of a module's classes and types."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_a_name_has_one_meaning() -> None:
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in python_files(*PRODUCT):
        for name in set(definitions(parse(path))) & set(ONE_MEANING):
            homes[name].append(name_of(path))
    several = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert not several, f"defined in several modules: {several}"


def test_modules_of_tests_have_names_of_their_own() -> None:
    """Test folders are not packages, so pytest imports only one of two modules with equal names."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in (ROOT / "tests").rglob("*.py"):
        if not (path.parent / "__init__.py").exists() and path.name != "conftest.py":
            homes[path.name].append(name_of(path))
    several = {name: modules for name, modules in homes.items() if len(modules) > 1}
    assert not several, f"modules of one name: {several}"
