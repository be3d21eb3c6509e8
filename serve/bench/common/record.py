"""Records as JSON files."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from serve.bench.common.conditions import Conditions


def write_record(path: str | Path, benchmark: str, found: Conditions, record: Any) -> None:
    """Writes a dataclass, the benchmark that made it and the conditions; infinities become null."""
    fields = {"benchmark": benchmark, "conditions": asdict(found), **_finite(asdict(record))}
    Path(path).write_text(json.dumps(fields, indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has neither infinities nor NaN."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not abs(value) < float("inf") else value
