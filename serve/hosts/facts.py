"""Facts that must be equal in all processes of an engine, and their exchange as JSON."""

import hashlib
import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("eagle3-jax", "jax", "jaxlib", "llguidance")
WEIGHT_FILES = ("*.safetensors", "*.json")
Facts = Mapping[str, str]
"""Name of a fact -> its value."""


def facts(count: int, model: Path, draft: Path | None, settings: Mapping[str, object]) -> Facts:
    """Collect the facts: versions, digests of checkpoint directories, and settings except None.

    Directories may have different names in each process. Raises OSError for unreadable ones.
    """
    files = {"model": model} | ({"draft": draft} if draft else {})
    return {
        **{package: _version(package) for package in PACKAGES},
        "number of processes": str(count),
        **{f"files of the {name}": _digest(directory) for name, directory in files.items()},
        **{name: str(value) for name, value in settings.items() if value is not None},
    }


def to_json(process: int, ours: Facts) -> bytes:
    """Encode the id and the facts of a process."""
    return json.dumps({"process": process, "facts": dict(ours)}).encode()


def from_json(text: bytes) -> tuple[int, dict[str, str]] | None:
    """Decode the output of `to_json`; None for anything else, as the sender may be a stranger."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    match found:
        case {"process": int(process), "facts": dict(theirs), **more} if not more:
            texts = [text for fact in theirs.items() for text in fact]
            if type(process) is int and all(map(_is_text, texts)):
                return process, theirs
    return None


def difference(name: str, ours: Facts, theirs: Facts, leader: str) -> str | None:
    """Describe how another process differs from the leader, or return None."""
    differing = [
        f"{fact} ({theirs.get(fact, 'none')} there, {ours.get(fact, 'none')} in {leader})"
        for fact in sorted({*ours, *theirs})
        if theirs.get(fact) != ours.get(fact)
    ]
    return f"{name} differs in {'; '.join(differing)}" if differing else None


def _is_text(value: object) -> bool:
    """Return whether a value is text that UTF-8 can encode, without lone surrogates."""
    return isinstance(value, str) and not any("\ud800" <= c <= "\udfff" for c in value)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _digest(directory: Path) -> str:
    """Hash names, weight sizes and the content of small files, which distinguishes checkpoints."""
    found = hashlib.sha256()
    for pattern in WEIGHT_FILES:
        for path in sorted(directory.glob(pattern)):
            content = path.read_bytes() if path.suffix == ".json" else b""
            found.update(f"{path.name} {path.stat().st_size}\n".encode() + content)
    return found.hexdigest()[:12]
