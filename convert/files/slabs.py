"""Read tensors in slabs of rows, so that memory use does not grow with their size."""

from collections.abc import Iterator

SLAB_ELEMENTS = 1 << 20


def row_slabs(rows: int, row_elements: int, multiple_of: int = 1) -> Iterator[slice]:
    """Yield slices of about SLAB_ELEMENTS over all rows; starts are multiples of `multiple_of`."""
    step = max(SLAB_ELEMENTS // max(row_elements, 1) // multiple_of, 1) * multiple_of
    for start in range(0, rows, step):
        yield slice(start, min(start + step, rows))
