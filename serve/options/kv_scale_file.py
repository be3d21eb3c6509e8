"""Factors of a float8 KV cache in a JSON file, as `accept --measure-kv-scales` writes it."""

import json
from pathlib import Path
from typing import Any

from convert.files.json_object import parse_value
from eagle3_jax.engine import KVScales

POOLS = ("target", "draft")
MEASURED = "measured"


def read_kv_scales(path: Path) -> KVScales:
    """The factors of a file {"target": [...], "draft": [...]}; what it says under `measured` is for
    its readers.

    Raises ValueError, naming the file, for anything else, and OSError where it can't be read.
    """
    try:
        found = parse_value(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(found, dict) or set(found) - {MEASURED} != set(POOLS):
        raise ValueError(
            f"{path} must be a JSON object with the lists `target` and `draft`, as "
            "eagle3-bench accept --measure-kv-scales writes it"
        )
    lists = (found[name] for name in POOLS)
    if not all(isinstance(it, list) and {*map(type, it)} <= {int, float} for it in lists):
        raise ValueError(f"{path}: target and draft must be lists of numbers, one for each KV pool")
    try:
        return KVScales(tuple(found["target"]), tuple(found["draft"]))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def write_kv_scales(path: Path, scales: KVScales, measured: dict[str, Any]) -> None:
    """Writes the file; measured: from what."""
    content = {"target": scales.target, "draft": scales.draft, MEASURED: measured}
    path.write_text(json.dumps(content, indent=2) + "\n")
