"""docs/reference/python.md: the public names of the packages, from their source.

Nothing is imported: signatures stand as they are written.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent

PACKAGES = ("eagle3_jax", "eagle3_jax.engine", "convert", "pallas_kernels")
HEAD = """# Python

Made by `python -m docs.generator` from the source; a test compares them. Shapes are written as
jaxtyping reads them.
"""
LINE = 100
OPTION_MAKERS = ("option", "_switch")
"""Of eagle3_jax.sampling.params."""
Definition = ast.FunctionDef | ast.ClassDef | ast.Assign


def python_page(root: Path) -> str:
    """The page."""
    sections = [HEAD]
    for package in PACKAGES:
        tree = _module(root, package)
        sections.append(f"## {package}\n\n{ast.get_docstring(tree)}\n")
        for module, name in _exported(tree):
            sections += _entry(_find(root, module, name))
    return "\n".join(sections)


def _module(root: Path, name: str) -> ast.Module:
    path = root / Path(*name.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(path.read_text(encoding="utf-8"))


def _exported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """(module, name) of what is imported `as` itself."""
    for node in _statements(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield from ((node.module, a.name) for a in node.names if a.name == a.asname)


def _find(root: Path, module: str, name: str) -> Definition:
    """The definition of a name, through the modules that pass it on."""
    for node in _statements(_module(root, module)):
        if isinstance(node, Definition) and _name(node) == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module:
            if name in (alias.asname or alias.name for alias in node.names):
                return _find(root, node.module, name)
    raise LookupError(f"{module} has no {name}")


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """A module's, and those that only type checkers run."""
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node


def _name(node: Definition) -> str:
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else node.name


def _entry(node: Definition) -> list[str]:
    if isinstance(node, ast.Assign):
        return [f"### {_name(node)}\n", _block(ast.unparse(node))]
    text = ast.get_docstring(node) or ""
    if isinstance(node, ast.FunctionDef):
        return [f"### {node.name}\n", _block(_signature(node)), f"{text}\n"]
    methods = [item for item in node.body if isinstance(item, ast.FunctionDef) and _is_public(item)]
    return [f"### {node.name}\n", _block(_class_head(node)), f"{text}\n", *map(_method, methods)]


def _is_public(method: ast.FunctionDef) -> bool:
    return not method.name.startswith("_") and bool(ast.get_docstring(method))


def _class_head(node: ast.ClassDef) -> str:
    """The class with its fields, or with what it is made of."""
    bases = ", ".join(map(ast.unparse, node.bases))
    made = [m for m in node.body if isinstance(m, ast.FunctionDef) and m.name == "__init__"]
    fields = [
        _field(item)
        for item in node.body
        if isinstance(item, ast.AnnAssign) and not ast.unparse(item.target).startswith("_")
    ]
    if made:
        fields = [f"{_signature(made[0])}"]
    head = f"class {node.name}" + (f"({bases})" if bases else "")
    return head + (":\n" + indent("\n".join(fields), "    ") if fields else "")


def _field(item: ast.AnnAssign) -> str:
    """As it is written; a request option with its default alone, as its page has the rest."""
    if isinstance(item.value, ast.Call) and ast.unparse(item.value.func) in OPTION_MAKERS:
        item.value = item.value.args[0]
    return ast.unparse(item)


def _method(node: ast.FunctionDef) -> str:
    text = " ".join((ast.get_docstring(node) or "").split())
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    called = (
        node.name if decorators & {"property", "cached_property"} else _signature(node, short=True)
    )
    return f"* `{called}`: {text}\n"


def _signature(node: ast.FunctionDef, *, short: bool = False) -> str:
    """As it is written; a long one has an argument a line, unless it must be short."""
    parts = [part for part in _arguments(node.args) if part not in ("self", "cls")]
    result = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{node.name}({', '.join(parts)}){result}"
    if short or len(line) <= LINE:
        return line
    return f"{node.name}(\n" + indent(",\n".join(parts), "    ") + f",\n){result}"


def _arguments(args: ast.arguments) -> Iterator[str]:
    positional = [*args.posonlyargs, *args.args]
    defaults = [None] * (len(positional) - len(args.defaults)) + list(args.defaults)
    for argument, default in zip(positional, defaults, strict=True):
        yield _argument(argument, default)
    if args.vararg:
        yield "*" + ast.unparse(args.vararg)
    elif args.kwonlyargs:
        yield "*"
    for argument, default in zip(args.kwonlyargs, args.kw_defaults, strict=True):
        yield _argument(argument, default)
    if args.kwarg:
        yield "**" + ast.unparse(args.kwarg)


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    equals = " = " if argument.annotation else "="
    return ast.unparse(argument) + (f"{equals}{ast.unparse(default)}" if default else "")


def _block(code: str) -> str:
    return f"```python\n{code}\n```\n"
