"""Boxes: the part of an array that a device holds, one slice with both ends for each axis."""

from collections.abc import Sequence

Box = tuple[slice, ...]


def box_of(index: tuple[slice, ...] | None, shape: Sequence[int]) -> Box:
    """An index of slices without steps, as JAX gives them, with the ends it leaves out."""
    return tuple(
        slice(*axis.indices(size)[:2]) for axis, size in zip(index or (), shape, strict=True)
    )


def whole(shape: Sequence[int]) -> Box:
    """The box of everything."""
    return tuple(slice(0, size) for size in shape)


def box_shape(box: Box) -> tuple[int, ...]:
    """The shape of what lies in it."""
    return tuple(axis.stop - axis.start for axis in box)


def scaled(axis: slice, numerator: int, denominator: int = 1) -> slice:
    """A slice in other units, widened to whole ones."""
    return slice(axis.start * numerator // denominator, -(-axis.stop * numerator // denominator))


def hull(boxes: Sequence[Box]) -> Box:
    """The smallest box around all of them."""
    return tuple(
        slice(min(axis.start for axis in axes), max(axis.stop for axis in axes))
        for axes in zip(*boxes, strict=True)
    )


def within(box: Box, outer: Box) -> Box:
    """The place of a box in what was read of the one around it."""
    return tuple(
        slice(inner.start - around.start, inner.stop - around.start)
        for inner, around in zip(box, outer, strict=True)
    )
