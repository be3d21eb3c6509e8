"""Bundle for running a command on a bare machine without a network: source, wheels and a script.

The machine has Python with JAX, NumPy and PyTorch. Other packages that the command's modules
import, and their requirements, are included as wheels.
"""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Collection, Sequence
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

OURS = "eagle3-jax"
THERE = ("jax", "jaxlib", "numpy", "torch")
"""Packages on every such machine."""
LARGEST = 48 << 20
PYTHON = "3.12"
_GLIBC = (17, 24, 26, 27, 28, 31, 34, 35)
_RUN = """\
#!/bin/sh
# Needs python3 {python} with JAX, and no network. Arguments go to {command}.
here=$(cd "$(dirname "$0")" && pwd)
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
set -e
python3 -m pip install --quiet --no-index --no-deps --no-compile --target "$site" "$here"/wheels/*
PYTHONPATH="$here/source:$site" python3 -P -m {command} "$@"
"""
_BESIDE = """\
import importlib, json, sys
from importlib.metadata import packages_distributions
known, seen = packages_distributions(), []
for names in sys.argv[1:]:
    for name in names.split():
        importlib.import_module(name)
    tops = {name.partition(".")[0] for name in list(sys.modules)}
    seen.append({found for top in tops for found in known.get(top, ())})
print(json.dumps(sorted(seen[1] - seen[0])))
"""


def carry(
    folder: Path,
    command: str,
    packages: Sequence[str],
    modules: Sequence[str],
    there: Sequence[str] = THERE,
) -> list[str]:
    """Write source/ (packages), wheels/ (imports of the modules) and run.sh; describe them.

    run.sh runs `python3 -m command`. there: distributions that the machine has, with their
    requirements. Raises FileExistsError for a folder that is not empty, and RuntimeError if pip
    finds no wheel for PYTHON on x86-64 or if the bundle is too large.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"expected an empty or a new folder, {folder} holds something")
    (folder / "wheels").mkdir(parents=True)
    for package in packages:
        _copy_source(package, folder / "source")
    _copy_metadata(folder / "source")
    _download(_lacking(modules, there), folder / "wheels")
    script = folder / "run.sh"
    script.write_text(_RUN.format(python=PYTHON, command=command), encoding="utf-8")
    script.chmod(0o755)
    nbytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    if nbytes > LARGEST:
        raise RuntimeError(f"{folder} has {nbytes >> 20} MiB, at most {LARGEST >> 20} are carried")
    wheels = sorted(path.name for path in (folder / "wheels").iterdir())
    compiled = [name for name in wheels if not name.endswith("-none-any.whl")]
    return [
        f"{folder}: {nbytes / 2**20:.1f} MiB, {len(wheels)} wheels",
        f"for any Python: {', '.join(name for name in wheels if name not in compiled)}",
        f"for Python {PYTHON} on x86-64 only: {', '.join(compiled) or 'none'}",
        f"there: sh {folder.name}/run.sh, with the command's flags",
    ]


def _copy_source(package: str, folder: Path) -> None:
    spec = find_spec(package)
    assert spec and spec.origin, f"{package} is one of ours"
    origin = Path(spec.origin).parent
    shutil.copytree(origin, folder / package, ignore=shutil.ignore_patterns("__pycache__"))


def _copy_metadata(folder: Path) -> None:
    """Copy the version metadata of the installed package, if it is installed."""
    try:
        found = distribution(OURS)
    except PackageNotFoundError:
        return
    described = folder / f"{OURS.replace('-', '_')}-{found.version}.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(found.read_text("METADATA") or "", encoding="utf-8")


def _lacking(modules: Sequence[str], there: Sequence[str]) -> list[str]:
    """Return name==version of the modules' imports and requirements beyond `there`."""
    # JAX and torch load some packages only if they happen to be installed: ignore these.
    core = [name for name in THERE if find_spec(name)]
    beside = _imported_beside([*core, "jax.numpy", "jax.experimental.pallas"], modules)
    found = _with_requirements(beside) - _with_requirements(there)
    return [f"{name}=={distribution(name).version}" for name in sorted(found)]


def _imported_beside(core: Sequence[str], modules: Sequence[str]) -> set[str]:
    """Return distributions that a process loads only when it imports these modules."""
    command = [sys.executable, "-P", "-c", _BESIDE, " ".join(core), " ".join(modules)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return set(json.loads(said.splitlines()[-1]))


def _with_requirements(names: Collection[str]) -> set[str]:
    """Return names with their installed requirements, extras excluded, in normalised form."""
    waiting, found = list(names), set[str]()
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            required = distribution(name).requires or []
        except PackageNotFoundError:
            continue
        found.add(name)
        waiting += [re.split(r"[^\w.-]", line)[0] for line in required if "extra ==" not in line]
    return found


def _download(wanted: Sequence[str], folder: Path) -> None:
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet"]
    command += ["--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", PYTHON]
    for version in _GLIBC:
        command += ["--platform", f"manylinux_2_{version}_x86_64"]
    command += ["--platform", "manylinux2014_x86_64", "--implementation", "cp"]
    done = subprocess.run(
        [*command, "--dest", str(folder), *wanted], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"pip found not all of {', '.join(wanted)}: {done.stderr.strip()}")
