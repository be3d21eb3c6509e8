"""Read and write the factors of a float8 KV cache as JSON (`accept --measure-kv-scales`)."""

import json
from pathlib import Path
from typing import Any

from convert.files.json_object import parse_value
from eagle3_jax.engine import KVScales

POOLS = ("target", "draft")
MEASURED = "measured"


def read_kv_scales(path: Path) -> KVScales:
    """Read the factors of a file {"target": [...], "draft": [...]}; `measured` is ignored.

    Raises ValueError, naming the file, for other content, and OSError if it cannot be read.
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
    """Write the file; `measured` describes the measurement."""
    content = {"target": scales.target, "draft": scales.draft, MEASURED: measured}
    path.write_text(json.dumps(content, indent=2) + "\n")
