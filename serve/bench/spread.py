"""Repeated measurements of one thing, and what is kept of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True)
class Spread:
    """Seconds (or another unit where said) of `count` repetitions; best is the smallest."""

    median: float
    best: float
    worst: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        """Raises ValueError without samples."""
        if not samples:
            raise ValueError("a spread needs at least one sample")
        return cls(median(samples), min(samples), max(samples), len(samples))

    @property
    def relative(self) -> float:
        """(worst - best) / median: how far the repetitions lie apart."""
        return (self.worst - self.best) / self.median
