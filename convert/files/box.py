"""Arithmetic on boxes, the slices of an array's axes that a device holds, and on slabs of rows."""

from collections.abc import Iterator, Sequence

Box = tuple[slice, ...]
SLAB_ELEMENTS = 1 << 20


def box_of(index: tuple[slice, ...] | None, shape: Sequence[int]) -> Box:
    """Return an index of slices without steps, as JAX gives them, with all ends filled in."""
    return tuple(
        slice(*axis.indices(size)[:2]) for axis, size in zip(index or (), shape, strict=True)
    )


def whole(shape: Sequence[int]) -> Box:
    return tuple(slice(0, size) for size in shape)


def box_shape(box: Box) -> tuple[int, ...]:
    return tuple(axis.stop - axis.start for axis in box)


def scaled(axis: slice, numerator: int, denominator: int = 1) -> slice:
    """Convert a slice to other units, widened to whole units."""
    return slice(axis.start * numerator // denominator, -(-axis.stop * numerator // denominator))


def hull(boxes: Sequence[Box]) -> Box:
    """Return the smallest box that contains all boxes."""
    return tuple(
        slice(min(axis.start for axis in axes), max(axis.stop for axis in axes))
        for axes in zip(*boxes, strict=True)
    )


def within(box: Box, outer: Box) -> Box:
    """Return a box relative to the box around it."""
    return tuple(
        slice(inner.start - around.start, inner.stop - around.start)
        for inner, around in zip(box, outer, strict=True)
    )


def row_slabs(rows: int, row_elements: int, multiple_of: int = 1) -> Iterator[slice]:
    """Yield slices of about SLAB_ELEMENTS over all rows; starts are multiples of `multiple_of`."""
    step = max(SLAB_ELEMENTS // max(row_elements, 1) // multiple_of, 1) * multiple_of
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
