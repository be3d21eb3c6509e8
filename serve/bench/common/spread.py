"""Median, best and worst of repeated measurements."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


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
    def relative(self) -> float:
        """(worst - best) / median: how far the repetitions lie apart."""
        return abs(self.worst - self.best) / self.median
