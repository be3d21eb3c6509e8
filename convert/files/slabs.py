"""Tensors read a slab of rows at a time, so that memory does not grow with them."""

from collections.abc import Iterator

SLAB_ELEMENTS = 1 << 20


def row_slabs(rows: int, row_elements: int, multiple_of: int = 1) -> Iterator[slice]:
    """Slices of about SLAB_ELEMENTS that cover all rows, each starting at a multiple."""
    step = max(SLAB_ELEMENTS // max(row_elements, 1) // multiple_of, 1) * multiple_of
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
