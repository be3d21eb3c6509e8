"""A fixed choice of k by batch size, as in vLLM's num_speculative_tokens_per_batch_size."""

from collections.abc import Sequence
from itertools import pairwise

BatchSizeTable = tuple[tuple[int, int, int], ...]
"""Rows of (first batch size, last batch size, k), ascending."""


def check_table(rows: Sequence[Sequence[int]], most: int) -> BatchSizeTable:
    """Sort rows; raise ValueError unless they start at 1, do not overlap and have k in 0..most."""
    if not rows or any(len(row) != 3 or any(type(n) is not int for n in row) for row in rows):
        raise ValueError(
            "num_speculative_tokens_per_batch_size must be rows of three integers, "
            f"[first batch size, last batch size, k]; got {rows!r}"
        )
    table = tuple((low, high, k) for low, high, k in sorted(map(tuple, rows)))
    if table[0][0] != 1:
        raise ValueError(
            "num_speculative_tokens_per_batch_size must begin at batch size 1; its first row "
            f"begins at {table[0][0]}"
        )
    for low, high, k in table:
        if low > high or not 0 <= k <= most:
            raise ValueError(
                "num_speculative_tokens_per_batch_size: a row is [first, last, k] with first <= "
                f"last and k in 0..num_speculative_tokens={most}; got {[low, high, k]}"
            )
    for before, after in pairwise(table):
        if after[0] <= before[1]:
            raise ValueError(
                "num_speculative_tokens_per_batch_size: rows must not overlap; "
                f"got {list(before)} and {list(after)}"
            )
    return table


def expand_table(table: BatchSizeTable, max_num_seqs: int) -> tuple[int, ...]:
    """Return k of each batch size 1..max_num_seqs; uncovered sizes use the previous row."""
    return tuple(
        next(k for low, _, k in reversed(table) if low <= size)
        for size in range(1, max_num_seqs + 1)
    )
