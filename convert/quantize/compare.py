"""Compare the weights of two checkpoints, tensor by tensor; either may be quantised."""

import math
from dataclasses import dataclass

import numpy as np

from convert.files.safetensors_files import Checkpoint, TensorInfo, read_rows
from convert.files.slabs import row_slabs
from convert.published.form import VALUES_PER_WORD, Parts
from convert.published.weights import parts_by_weight
from convert.quantize.decode import dequantize
from pallas_kernels.quantized.formats import BLOCK

WHOLE = ("weight_shape", "weight_zero_point")


@dataclass(frozen=True)
class TensorError:
    """The difference between one weight of A and of B.

    `relative` is |A - B| / |B| in the Euclidean norm, `largest` the greatest |A - B| of an element.
    Both are infinite if either weight holds NaN.
    """

    name: str
    relative: float
    largest: float
    elements: int
    form: str
    reference_form: str


@dataclass(frozen=True)
class Comparison:
    """The differences of all tensors, worst first, and the names that only one checkpoint holds.

    `relative` treats all weights as one vector, without tables of integers such as d2t.
    """

    tensors: list[TensorError]
    relative: float
    only_in_first: list[str]
    only_in_second: list[str]


def compare(first: Checkpoint, second: Checkpoint) -> Comparison:
    """Compare dequantised weights; ValueError if shapes differ."""
    ours, theirs = (parts_by_weight(each.tensors.values()) for each in (first, second))
    squares, reference, errors = 0.0, 0.0, []
    for name in sorted(ours.keys() & theirs.keys()):
        error, difference_square, reference_square = _compare_one(name, ours[name], theirs[name])
        errors.append(error)
        if not _is_table(theirs[name]):
            squares += difference_square
            reference += reference_square
    return Comparison(
        sorted(errors, key=lambda error: -error.relative),
        _ratio(squares, reference),
        sorted(ours.keys() - theirs.keys()),
        sorted(theirs.keys() - ours.keys()),
    )


def _compare_one(name: str, ours: Parts, theirs: Parts) -> tuple[TensorError, float, float]:
    squares, reference, largest, elements = 0.0, 0.0, 0.0, 0
    rows, their_rows = _rows(ours), _rows(theirs)
    if rows != their_rows:
        raise ValueError(f"{name}: {rows} rows in one checkpoint, {their_rows} in the other")
    for slab in row_slabs(rows, _row_elements(ours), BLOCK):
        value, expected = _dequantized(ours, slab), _dequantized(theirs, slab)
        if value.shape != expected.shape:
            raise ValueError(f"{name}: shapes {value.shape} and {expected.shape} of the same rows")
        difference = _difference(value, expected)
        squares += float(np.square(difference).sum())
        reference += float(np.square(expected, dtype=np.float64).sum())
        largest = max(largest, float(np.abs(difference).max(initial=0)))
        elements += value.size
    error = TensorError(
        name, _ratio(squares, reference), largest, elements, _form(ours), _form(theirs)
    )
    return error, squares, reference


def _difference(value: np.ndarray, expected: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(value - expected, nan=np.inf, posinf=np.inf).astype(np.float64)


def _dequantized(parts: Parts, rows: slice) -> np.ndarray:
    return dequantize({part: _read(part, info, rows) for part, info in parts.items()})


def _read(part: str, info: TensorInfo, rows: slice) -> np.ndarray:
    """Read a tensor's rows of a slab, or all of a tensor that does not have the weight's rows."""
    if part in WHOLE or info.shape in ((), (1,)):
        return read_rows(info, slice(0, info.shape[0] if info.shape else 1))
    if part == "weight_scale_inv":
        return read_rows(info, slice(rows.start // BLOCK, -(-rows.stop // BLOCK)))
    return read_rows(info, rows)


def _values(parts: Parts) -> TensorInfo:
    return parts.get("weight_packed") or parts.get("weight") or next(iter(parts.values()))


def _rows(parts: Parts) -> int:
    shape = _values(parts).shape
    return shape[0] if shape else 1


def _row_elements(parts: Parts) -> int:
    values = _values(parts)
    per_word = VALUES_PER_WORD.get(values.dtype, 1) if len(parts) > 1 else 1
    return math.prod(values.shape[1:]) * per_word


def _is_table(parts: Parts) -> bool:
    return len(parts) == 1 and not _values(parts).dtype.startswith(("F", "BF"))


def _form(parts: Parts) -> str:
    return "+".join(info.dtype for info in parts.values())


def _ratio(squares: float, reference: float) -> float:
    if squares == 0:
        return 0.0
    return math.sqrt(squares / reference) if reference and math.isfinite(squares) else math.inf
