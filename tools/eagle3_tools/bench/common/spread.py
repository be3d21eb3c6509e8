"""Repeated measurements: all sides in turn; median, best and worst of each."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

Turn = TypeVar("Turn")


@dataclass(frozen=True)
class Spread:
    """Seconds (or another unit where said) of `count` repetitions; best is the smallest, of rates
    the largest."""

    median: float
    best: float
    worst: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float], *, rates: bool = False) -> "Spread":
        """Raises ValueError without samples."""
        if not samples:
            raise ValueError("a spread needs at least one sample")
        ends = min(samples), max(samples)
        best, worst = reversed(ends) if rates else ends
        return cls(median(samples), best, worst, len(samples))

    @property
    def milliseconds(self) -> str:
        """Median and best, in words."""
        return f"{self.median * 1e3:.2f} (best {self.best * 1e3:.2f})"


def in_turn(sides: Iterable[Turn], repetitions: int) -> Iterator[Turn]:
    """All sides so often; each time another begins."""
    order = deque(sides)
    for _ in range(repetitions):
        yield from tuple(order)
        order.rotate()
