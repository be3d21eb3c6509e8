"""Facts that must be equal in all processes of an engine: versions, checkpoints, settings."""

import hashlib
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from serve.hosts.meet import Facts
from serve.options.hosts import HostOptions

PACKAGES = ("eagle3-jax", "jax", "jaxlib", "llguidance")
WEIGHT_FILES = ("*.safetensors", "*.json")


def facts(
    hosts: HostOptions, model: Path, draft: Path | None, settings: Mapping[str, object]
) -> Facts:
    """Versions, checkpoints by what lies in their directories, and settings by their values; None
    is left out. The directories' names may differ. Raises OSError for one that can't be read."""
    files = {"model": model} | ({"draft": draft} if draft else {})
    return {
        **{package: _version(package) for package in PACKAGES},
        "number of processes": str(hosts.num_processes),
        **{f"files of the {name}": _digest(directory) for name, directory in files.items()},
        **{name: str(value) for name, value in settings.items() if value is not None},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _digest(directory: Path) -> str:
    """Of names, sizes of weights and the small files' content: enough to tell checkpoints apart."""
    found = hashlib.sha256()
    for pattern in WEIGHT_FILES:
        for path in sorted(directory.glob(pattern)):
            content = path.read_bytes() if path.suffix == ".json" else b""
            found.update(f"{path.name} {path.stat().st_size}\n".encode() + content)
    return found.hexdigest()[:12]
