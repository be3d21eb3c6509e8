"""Read a parameter, or the box of it that a device holds, from the weights a plan found for it.

No more of the files is read than the box needs; of rows that it cuts, the pages it touches.
"""

import math
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np

from convert.files.aligned import aligned_empty
from convert.files.box import Box, box_shape, scaled, whole
from convert.files.safetensors_files import DTYPES, read_box
from convert.files.slabs import row_slabs
from convert.published.form import PartReader
from convert.published.plan import Source
from convert.published.weights import Weight
from pallas_kernels import QuantFormat, QuantizedArray, dequantize

TILE = 256
"""Columns of a slab that are turned together: they and what comes of them fit into a cache."""


def read_floats(sources: Sequence[Source], box: Box, dtype: np.dtype) -> np.ndarray:
    """Reads a box of a float (or integer) parameter in `dtype`, in memory of its own."""
    out = aligned_empty(box_shape(box), dtype)
    for source, row in _rows(sources, box):
        if row is None:
            _copy(source, box, out)
        else:
            _copy(source, box[1:], out[row, ...])
    return out


def read_kept(sources: Sequence[Source], which: str, box: Box | None) -> np.ndarray:
    """Reads the "values" or the "scale" of a parameter that stays quantised, stacked by row; of
    all of them without a box.

    Raises ValueError naming the weight when what it holds cannot be right.
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
    """The dtype in which a float parameter loses nothing: the file's, float32 where they differ."""
    dtypes = {DTYPES[source.weight.tensor.dtype] for source in sources}
    quantized = any(source.weight.form for source in sources)
    return np.dtype(np.float32) if quantized or len(dtypes) > 1 else dtypes.pop()


def _rows(sources: Sequence[Source], box: Box) -> Iterator[tuple[Source, int | None]]:
    """The sources of what lies in a box, each with its row there if the parameter is stacked."""
    for source in sources:
        if source.row is None:
            yield source, None
        elif box[0].start <= source.row < box[0].stop:
            yield source, source.row - box[0].start


def _copy(source: Source, box: Box, out: np.ndarray) -> None:
    """Fills a box from one weight, a slab at a time: Kimi's head is 2 GiB, twice would be much."""
    layout, info = source.layout, source.weight.tensor
    if source.weight.form is not None or layout.read_whole:
        tensor = _dequantized(source.weight) if source.weight.form else read_box(info)
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
    """Copies and casts. A turned matrix goes a tile at a time, cast before it is turned: numpy
    would cast its numbers one by one, each from another line of the cache."""
    if values.ndim != 2 or values.flags.c_contiguous:
        out[...] = values
        return
    for start in range(0, len(values), TILE):
        tile = values[start : start + TILE].T
        out[start : start + TILE] = np.array(tile, out.dtype, order="C").T


def _dequantized(weight: Weight) -> np.ndarray:
    assert weight.form is not None, "only quantised weights need it"
    values, scale = (jnp.asarray(_read_part(weight, which)) for which in ("values", "scale"))
    return np.asarray(dequantize(QuantizedArray(values, scale, QuantFormat(weight.form.weights))))


def _read_part(weight: Weight, which: str, box: Box | None = None) -> np.ndarray:
    """The values or the scale of one matrix, or what lies in a box of them."""
    assert weight.form is not None, "only quantised weights have parts"
    read = weight.form.values if which == "values" else weight.form.scale
    boxes = {} if box is None else dict(_part_boxes(weight, which, box))
    try:
        part = read(PartReader(weight.parts, weight.shape, boxes))
    except ValueError as error:
        raise ValueError(f"{weight.tensor.file.parent}: {weight.name}: {error}") from error
    return part if box is None or part.ndim < 2 else part[:, _within(weight, which, box)]


def _part_boxes(weight: Weight, which: str, box: Box) -> Iterator[tuple[str, Box]]:
    """Where in a weight's tensors a box of its values or its scale lies; one number is whole."""
    assert weight.form is not None, "only quantised weights have parts"
    if which == "values":
        rows, columns = box
        yield weight.form.main, (rows, scaled(columns, 1, _word_bytes(weight)))
        return
    for name, info in weight.parts.items():
        if name in weight.form.scales and math.prod(info.shape) > 1:
            yield name, (*box, *whole(info.shape[len(box) :]))


def _within(weight: Weight, which: str, box: Box) -> slice:
    """The columns of a box in the whole words that were read."""
    word = _word_bytes(weight) if which == "values" else 1
    before = box[1].start % word
    return slice(before, before + box[1].stop - box[1].start)


def _word_bytes(weight: Weight) -> int:
    """Stored values are bytes, a file's words have up to four."""
    return DTYPES[weight.tensor.dtype].itemsize
