"""Assignment of sequences to program rows: replica by replica, equally many rows each."""

from collections import Counter
from collections.abc import Sequence as Rows

from eagle3_jax.engine.sequence import Sequence


def largest_replica_batch(members: Rows[Sequence]) -> int:
    """Return the largest number of sequences on one replica."""
    return max(Counter(member.replica for member in members).values(), default=0)


def places(members: Rows[Sequence], batch: int) -> list[int]:
    """Return the row of each sequence in a program of `batch` rows per replica."""
    taken = Counter[int]()
    rows: list[int] = []
    for member in members:
        rows.append(member.replica * batch + taken[member.replica])
        taken[member.replica] += 1
    return rows
