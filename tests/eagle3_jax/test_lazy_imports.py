"""Reading flags and checking options does not import JAX."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import convert
import eagle3_jax
import eagle3_jax.engine

WITHOUT_JAX = (
    "eagle3_jax.engine.config",
    "eagle3_jax.sampling.params",
    "eagle3_jax.speculative.method",
)
PACKAGES = convert, eagle3_jax, eagle3_jax.engine


@pytest.mark.parametrize("module", WITHOUT_JAX)
def test_imports_no_jax(module: str) -> None:
    program = f"import sys, {module}; print(sorted({{'jax', 'jaxlib', 'flax'}} & set(sys.modules)))"
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[]"


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_names_for_type_checkers_are_those_that_load(package: object) -> None:
    path = Path(str(getattr(package, "__file__", None)))
    shown = [
        (node.module, alias.name)
        for block in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert shown
    for module, name in shown:
        assert getattr(package, name) is getattr(sys.modules[str(module)], name)
        assert not (path.parent / f"{name}.py").exists()


def test_a_name_that_there_is_not() -> None:
    with pytest.raises(AttributeError, match="'eagle3_jax' has no attribute 'Nonesuch'"):
        _ = eagle3_jax.Nonesuch  # pyright: ignore[reportAttributeAccessIssue]
