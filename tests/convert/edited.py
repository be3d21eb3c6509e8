"""Copies of checkpoints with tensors or configuration changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors_writing import write_safetensors

from convert.files.safetensors_files import open_checkpoint

Tensors = dict[str, np.ndarray]
Change = Callable[[Any], Any]


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
