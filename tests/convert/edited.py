"""Copies of checkpoints with tensors or configuration changed."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors_writing import write_safetensors

from convert.files.safetensors_files import open_checkpoint

Tensors = dict[str, np.ndarray]
Change = Callable[[Any], Any]


def put(value: Any, place: Sequence[Any], new: Any) -> Any:
    """A JSON value with another one at a place in it; the rest of it is shared."""
    if not place:
        return new
    changed = value.copy()
    changed[place[0]] = put(value[place[0]] if len(place) > 1 else None, place[1:], new)
    return changed


def copy_edited(
    source: Path, into: Path, *, tensors: Change | None = None, config: Change | None = None
) -> Path:
    """Writes a one-file copy; a change edits its dict in place, or returns another one."""
    checkpoint = open_checkpoint(source)
    arrays = {name: checkpoint.read(name) for name in checkpoint.tensors}
    arrays = (tensors(arrays) if tensors else None) or arrays
    published = json.loads((source / "config.json").read_text(encoding="utf-8"))
    published = (config(published) if config else None) or published
    into.mkdir()
    write_safetensors(into / "model.safetensors", arrays)
    (into / "config.json").write_text(json.dumps(published), encoding="utf-8")
    return into
