"""Write the files of a plan: a slab of rows in memory at a time, whatever the shards' size."""

from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np

from convert.files.safetensors_files import TensorInfo, read_rows
from convert.files.slabs import row_slabs
from convert.quantize.plan import WEIGHT, QuantizePlan
from convert.quantize.schemes.quantizer import Quantizer
from convert.quantize.shard_file import ShardFile

Advance = Callable[[int], None]
"""Called with the number of bytes of the source that have been read since the last call."""
SHAPE = "weight_shape"
COPY_BYTES = 1 << 24


def write_files(plan: QuantizePlan, directory: Path, advance: Advance) -> None:
    """Writes every safetensors file. Raises ValueError naming a weight that is not finite."""
    by_file: defaultdict[str, list[TensorInfo]] = defaultdict(list)
    for info in plan.source.tensors.values():
        by_file[info.file.name].append(info)
    for file, tensors in by_file.items():
        with ShardFile(directory / file, plan.files[file]) as shard:
            for info in tensors:
                if info.name in plan.quantized:
                    _write_quantized(shard, info, plan.scheme, advance)
                else:
                    _copy(shard, info, advance)


def _write_quantized(
    shard: ShardFile, info: TensorInfo, scheme: Quantizer, advance: Advance
) -> None:
    module = info.name.removesuffix(WEIGHT)
    if SHAPE in scheme.parts(info.shape):
        shard.append(module + SHAPE, np.array(info.shape, np.int32).tobytes())
    for rows in row_slabs(info.shape[0], info.shape[1], scheme.row_block):
        weight = read_rows(info, rows)
        _require_finite(info, rows, weight)
        for part, values in scheme.encode(weight).items():
            shard.append(module + part, values.tobytes())
        advance(weight.nbytes)


def _copy(shard: ShardFile, info: TensorInfo, advance: Advance) -> None:
    with info.file.open("rb") as file:
        file.seek(info.start)
        left = info.nbytes
        while left:
            chunk = file.read(min(left, COPY_BYTES))
            if not chunk:
                raise ValueError(f"{info.file} ended while {info.name} was read")
            shard.append(info.name, chunk)
            advance(len(chunk))
            left -= len(chunk)


def _require_finite(info: TensorInfo, rows: slice, weight: np.ndarray) -> None:
    finite = np.isfinite(weight)
    if not finite.all():
        row, column = np.argwhere(~finite)[0]
        raise ValueError(
            f"{info.name} in {info.file} holds {weight[row, column]} at "
            f"[{rows.start + row}, {column}]; a weight must be finite to be quantised"
        )
