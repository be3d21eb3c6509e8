"""Read a parameter, or the box of it that a device holds, from its planned weights.

Only the bytes of the box are read; for boxes that cut rows, only the pages that they touch.
"""

import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from convert.files.box import Box, box_shape, row_slabs, scaled, whole
from convert.files.safetensors_files import DTYPES, read_box
from convert.published.forms import PartReader
from convert.published.plan import Source
from convert.published.weights import Weight
from pallas_kernels import QuantFormat, QuantizedArray, dequantize

ALIGNMENT = 64
"""In bytes. XLA:CPU copies memory that is not aligned; NumPy's memory may begin anywhere."""


def aligned_empty(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Return an uninitialised array like `np.empty`, aligned for XLA:CPU."""
    nbytes = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(nbytes + ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % ALIGNMENT
    return memory[first : first + nbytes].view(dtype).reshape(shape)


TILE = 256
"""Columns of a slab that are transposed together; source and result fit into a cache."""


def read_floats(sources: Sequence[Source], box: Box, dtype: np.dtype) -> np.ndarray:
    """Read a box of a float (or integer) parameter in `dtype`, into its own memory."""
    out = aligned_empty(box_shape(box), dtype)
    for source, row in _rows(sources, box):
        if row is None:
            _copy(source, box, out)
        else:
            _copy(source, box[1:], out[row, ...])
    return out


def read_kept(sources: Sequence[Source], which: str, box: Box | None) -> np.ndarray:
    """Read the "values" or the "scale" of a quantised parameter, stacked by row.

    Without a box, all of it is read. Raises ValueError, naming the weight, for impossible values.
    """
    if sources[0].row is None:
        return _read_part(sources[0].weight, which, box)
    rows = slice(0, len(sources)) if box is None else box[0]
    out: np.ndarray | None = None
    for source, row in _rows(sources, (rows,)):
        part = _read_part(source.weight, which, box and box[1:])
        if out is None:
            out = aligned_empty((rows.stop - rows.start, *part.shape), part.dtype)
        out[row] = part
    assert out is not None, "a stacked parameter has rows"
    return out


def file_dtype(sources: Sequence[Source]) -> np.dtype:
    """Return the file's dtype of a float parameter, or float32 if its sources differ."""
    dtypes = {DTYPES[source.weight.tensor.dtype] for source in sources}
    quantized = any(source.weight.form for source in sources)
    return np.dtype(np.float32) if quantized or len(dtypes) > 1 else dtypes.pop()


def _rows(sources: Sequence[Source], box: Box) -> Iterator[tuple[Source, int | None]]:
    """Yield the sources in a box, each with its row in the box if the parameter is stacked."""
    for source in sources:
        if source.row is None:
            yield source, None
        elif box[0].start <= source.row < box[0].stop:
            yield source, source.row - box[0].start


def _copy(source: Source, box: Box, out: np.ndarray) -> None:
    """Fill a box from one weight in slabs, because Kimi's head alone is 2 GiB."""
    layout, info = source.layout, source.weight.tensor
    if source.weight.form is not None or layout.read_whole:
        tensor = read_dequantized(source.weight) if source.weight.form else read_box(info)
        out[...] = layout.load(tensor)[source.part][box]
        return
    wanted = layout.tensor_box(box)
    if layout.row_axis is None or not info.shape:
        out[...] = layout.load(read_box(info, wanted))[source.part]
        return
    first, columns = wanted[0].start, wanted[1:]
    for rows in row_slabs(wanted[0].stop - first, math.prod(box_shape(columns))):
        where = rows if layout.row_axis == 0 else (..., rows)
        slab = slice(first + rows.start, first + rows.stop)
        _place(out[where], layout.load(read_box(info, (slab, *columns)))[source.part])


def _place(out: np.ndarray, values: np.ndarray) -> None:
    """Copy and cast; a transposed matrix in tiles, cast first.

    NumPy would cast number by number, each from another cache line.
    """
    if values.ndim != 2 or values.flags.c_contiguous:
        out[...] = values
        return
    for start in range(0, len(values), TILE):
        tile = values[start : start + TILE].T
        out[start : start + TILE] = np.array(tile, out.dtype, order="C").T


def read_dequantized(weight: Weight, rows: slice | None = None) -> np.ndarray:
    """Read a quantised weight in float32, or `rows` of it, which begin where a block begins."""
    assert weight.form is not None, "plain weights are read as they are"
    format, (outputs, inputs) = QuantFormat(weight.form.weights), weight.shape
    rows = slice(0, outputs) if rows is None else rows
    block = format.stored.shared[0]
    boxes = {
        "values": (rows, slice(0, inputs // format.stored.values_per_byte)),
        "scale": (
            slice(rows.start // block, -(-rows.stop // block)),
            *whole(format.stored.scale_shape(outputs, inputs)[1:]),
        ),
    }
    values, scale = (jnp.asarray(_read_part(weight, which, box)) for which, box in boxes.items())
    return np.asarray(dequantize(QuantizedArray(values, scale, format)))


def _read_part(weight: Weight, which: str, box: Box | None = None) -> np.ndarray:
    """Read the values or the scale of one matrix, or a box of them."""
    assert weight.form is not None, "only quantised weights have parts"
    read = weight.form.values if which == "values" else weight.form.scale
    boxes = {} if box is None else dict(_part_boxes(weight, which, box))
    try:
        part = read(PartReader(weight.parts, weight.shape, boxes))
    except ValueError as error:
        raise ValueError(f"{weight.tensor.file.parent}: {weight.name}: {error}") from error
    return part if box is None or part.ndim < 2 else part[:, _within(weight, which, box)]


def _part_boxes(weight: Weight, which: str, box: Box) -> Iterator[tuple[str, Box]]:
    """Yield the tensors that hold a box of values or scale, and their boxes; scalars have none."""
    assert weight.form is not None, "only quantised weights have parts"
    if which == "values":
        rows, columns = box
        yield weight.form.main, (rows, scaled(columns, 1, _word_bytes(weight)))
        return
    for name, info in weight.parts.items():
        if name in weight.form.scales and math.prod(info.shape) > 1:
            yield name, (*box, *whole(info.shape[len(box) :]))


def _within(weight: Weight, which: str, box: Box) -> slice:
    """Return the columns of a box within the whole words that were read."""
    word = _word_bytes(weight) if which == "values" else 1
    before = box[1].start % word
    return slice(before, before + box[1].stop - box[1].start)


def _word_bytes(weight: Weight) -> int:
    """Return the bytes in a file's word, up to four; stored values are bytes."""
    return DTYPES[weight.tensor.dtype].itemsize
