"""Generate docs/reference/python.md: the public names of the packages, for mkdocstrings.

No package is imported: a public name is one that its `__init__.py` imports as itself.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGES = ("eagle3_jax", "eagle3_jax.engine", "convert", "pallas_kernels")
HEAD = """# Python API

Made by `python -m docs.generator`; a test compares them. The site of `make docs` has signatures and
docstrings. Shapes are written as jaxtyping reads them.
"""


def python_page(root: Path) -> str:
    """Return the page: a heading for each package, a directive for each public name."""
    sections = [HEAD]
    for package in PACKAGES:
        tree = _module(root, package)
        sections.append(f"## {package}\n\n{ast.get_docstring(tree)}\n")
        sections += [f"::: {_definition(root, *exported)}\n" for exported in _exported(tree)]
    return "\n".join(sections)


def _module(root: Path, name: str) -> ast.Module:
    path = root / Path(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _exported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of each import that keeps its name."""
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, a.name) for a in node.names if a.name == a.asname)


def _definition(root: Path, module: str, name: str) -> str:
    """Return the full name where it is defined, following imports."""
    for node in _statements(_module(root, module)):
        if isinstance(node, ast.ImportFrom) and node.module:
            if name in (alias.asname or alias.name for alias in node.names):
                return _definition(root, node.module, name)
    return f"{module}.{name}"


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those under TYPE_CHECKING."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node
