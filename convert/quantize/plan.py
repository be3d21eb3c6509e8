"""Lay out the files of a quantised checkpoint from headers alone, and write them.

One slab of rows is in memory at a time, whatever the size of the shards.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from convert.files.box import row_slabs
from convert.files.safetensors_files import (
    Append,
    Checkpoint,
    TensorInfo,
    TensorType,
    listed,
    read_rows,
    writing_tensors,
)
from convert.quantize.schemes import Quantizer
from convert.quantize.select import Selection
from eagle3_jax.replace_file import replaced

Advance = Callable[[int], None]
"""A function that receives the number of source bytes read since its last call."""
SHAPE = "weight_shape"
WEIGHT = "weight"


@dataclass(frozen=True)
class QuantizePlan:
    """The output's tensors by file. Each tensor stays in the file that it has in the source.

    `quantized` names the weights that are quantised.
    """

    source: Checkpoint = field(repr=False)
    scheme: Quantizer
    selection: Selection
    quantized: frozenset[str] = field(repr=False)
    files: dict[str, dict[str, TensorType]] = field(repr=False)

    @property
    def bytes_read(self) -> int:
        return sum(info.nbytes for info in self.source.tensors.values())

    @property
    def bytes_written(self) -> int:
        return sum(part.nbytes for parts in self.files.values() for part in parts.values())


def make_quantize_plan(source: Checkpoint, scheme: Quantizer, selection: Selection) -> QuantizePlan:
    """Lay out every file; one ValueError lists the weights that the scheme cannot store."""
    chosen = frozenset(f"{module}.{WEIGHT}" for module in selection.quantized)
    files: defaultdict[str, dict[str, TensorType]] = defaultdict(dict)
    misfits = []
    for name, info in source.tensors.items():
        if name not in chosen:
            files[info.file.name][name] = info
            continue
        try:
            parts = scheme.parts(info.shape)
        except ValueError as error:
            misfits.append(f"{name} {list(info.shape)}: {error}")
            continue
        module = name.removesuffix(WEIGHT)
        files[info.file.name] |= {module + part: written for part, written in parts.items()}
    if misfits:
        raise ValueError(f"{scheme.name} can't hold these weights; exclude them:{listed(misfits)}")
    return QuantizePlan(source, scheme, selection, chosen, dict(files))


def write_files(plan: QuantizePlan, directory: Path, advance: Advance) -> None:
    """Write every safetensors file; ValueError, naming the weight, if one is not finite."""
    by_file: defaultdict[str, list[TensorInfo]] = defaultdict(list)
    for info in plan.source.tensors.values():
        by_file[info.file.name].append(info)
    for file, tensors in by_file.items():
        parts = dict(sorted(plan.files[file].items()))
        with replaced(directory / file) as out, writing_tensors(out, parts) as append:
            for info in tensors:
                if info.name in plan.quantized:
                    _write_quantized(append, info, plan.scheme, advance)
                else:
                    _copy(append, info, advance)


def _write_quantized(append: Append, info: TensorInfo, scheme: Quantizer, advance: Advance) -> None:
    module = info.name.removesuffix(WEIGHT)
    if SHAPE in scheme.parts(info.shape):
        append(module + SHAPE, np.array(info.shape, np.int32).tobytes())
    for rows in row_slabs(info.shape[0], info.shape[1], scheme.row_block):
        weight = read_rows(info, rows)
        _require_finite(info, rows, weight)
        for part, values in scheme.encode(weight).items():
            append(module + part, values.tobytes())
        advance(weight.nbytes)


def _copy(append: Append, info: TensorInfo, advance: Advance) -> None:
    rows, *columns = info.shape or (1,)
    for slab in row_slabs(rows, math.prod(columns)):
        part = read_rows(info, slab)
        append(info.name, part.tobytes())
        advance(part.nbytes)


def _require_finite(info: TensorInfo, rows: slice, weight: np.ndarray) -> None:
    finite = np.isfinite(weight)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(
            f"{info.name} in {info.file} holds {weight[row, column]} at "
            f"[{rows.start + row}, {column}]; a weight must be finite to be quantised"
        )
