"""Which row of a program is whose: every replica has as many, one replica's behind the other's."""

from collections import Counter
from collections.abc import Sequence as Rows

from eagle3_jax.engine.sequence import Sequence


def most_together(members: Rows[Sequence]) -> int:
    """Of the sequences of one replica: what a batch must hold."""
    return max(Counter(member.replica for member in members).values(), default=0)


def places(members: Rows[Sequence], batch: int) -> list[int]:
    """The row of each sequence, in a program of `batch` rows a replica."""
    taken = Counter[int]()
    rows: list[int] = []
    for member in members:
        rows.append(member.replica * batch + taken[member.replica])
        taken[member.replica] += 1
    return rows
