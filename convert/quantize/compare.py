"""Compare the weights of two checkpoints, tensor by tensor; either may be quantised."""

import json
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from convert.files.box import row_slabs
from convert.files.safetensors_files import Checkpoint, listed, read_rows
from convert.published.read_parameter import read_dequantized
from convert.published.weights import Weight, find_weights
from convert.quantize.accept_change import AcceptChange
from pallas_kernels.quantized.formats import BLOCK


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
    """Compare dequantised weights; ValueError if shapes differ or a weight has no known form."""
    ours, theirs = _weights(first), _weights(second)
    squares, reference, errors = 0.0, 0.0, []
    for name in sorted(ours.keys() & theirs.keys()):
        error, difference_square, reference_square = _compare_one(ours[name], theirs[name])
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


def _weights(checkpoint: Checkpoint) -> dict[str, Weight]:
    weights, misfits = find_weights(checkpoint.tensors.values())
    if misfits:
        raise ValueError(f"{checkpoint.directory} has unreadable weights:{listed(misfits)}")
    return {weight.name: weight for weight in weights}


def _compare_one(ours: Weight, theirs: Weight) -> tuple[TensorError, float, float]:
    squares, reference, largest, elements = 0.0, 0.0, 0.0, 0
    if ours.shape != theirs.shape:
        raise ValueError(f"{ours.name}: shapes {ours.shape} and {theirs.shape} cannot be compared")
    rows, *columns = ours.shape or (1,)
    for slab in row_slabs(rows, math.prod(columns), BLOCK):
        value, expected = _read(ours, slab), _read(theirs, slab)
        difference = _difference(value, expected)
        squares += float(np.square(difference).sum())
        reference += float(np.square(expected, dtype=np.float64).sum())
        largest = max(largest, float(np.abs(difference).max(initial=0)))
        elements += value.size
    error = TensorError(
        ours.name, _ratio(squares, reference), largest, elements, _form(ours), _form(theirs)
    )
    return error, squares, reference


def _read(weight: Weight, rows: slice) -> np.ndarray:
    if weight.form is not None:
        return read_dequantized(weight, rows)
    return read_rows(weight.tensor, rows).astype(np.float32)


def _difference(value: np.ndarray, expected: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(value - expected, nan=np.inf, posinf=np.inf).astype(np.float64)


def _is_table(weight: Weight) -> bool:
    return weight.form is None and not weight.tensor.dtype.startswith(("F", "BF"))


def _form(weight: Weight) -> str:
    return "+".join(info.dtype for info in weight.parts.values())


def _ratio(squares: float, reference: float) -> float:
    if squares == 0:
        return 0.0
    return math.sqrt(squares / reference) if reference and math.isfinite(squares) else math.inf


def comparison_text(comparison: Comparison, limit: int) -> str:
    """Return a table, worst weight first, then the totals."""
    width = max((len(error.name) for error in comparison.tensors[:limit]), default=0)
    lines = [f"{'relative':>10}  {'largest':>10}  {'tensor':<{width}}  A / B"]
    lines += [
        f"{error.relative:10.3e}  {error.largest:10.3e}  {error.name:<{width}}  "
        f"{error.form} / {error.reference_form}"
        for error in comparison.tensors[:limit]
    ]
    if len(comparison.tensors) > limit:
        lines.append(f"... {len(comparison.tensors) - limit} more; --limit or --json shows them")
    equal = sum(error.largest == 0 for error in comparison.tensors)
    lines.append(
        f"total {comparison.relative:.3e} over {len(comparison.tensors)} tensors, {equal} equal"
    )
    for label, names in (("A", comparison.only_in_first), ("B", comparison.only_in_second)):
        if names:
            lines.append(f"only in {label}: {' '.join(names[:limit])}")
    return "\n".join(lines)


def comparison_json(comparison: Comparison, change: AcceptChange | None) -> str:
    """Return one line of JSON; null stands for an infinite error."""
    content: dict[str, Any] = _without_infinity(asdict(comparison))
    if change is not None:
        content["accept_length"] = asdict(change)
    return json.dumps(content)


def _without_infinity(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinity(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_without_infinity(entry) for entry in value]
    return None if isinstance(value, float) and math.isinf(value) else value
