"""What a round costs: seconds of each k, as the running median of what was measured last."""

from collections import deque
from statistics import median

SAMPLES = 9
"""Medians of so many: one preempted process or page fault more or less changes nothing."""


class StepCosts:
    """Seconds of one round of one batch shape, by k."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}

    def observe(self, drafts: int, seconds: float) -> None:
        """Takes one measured round."""
        self._samples.setdefault(drafts, deque(maxlen=SAMPLES)).append(seconds)

    def count(self, drafts: int) -> int:
        """How many measurements are remembered."""
        return len(self._samples.get(drafts, ()))

    def seconds(self, drafts: int) -> float:
        """The median; KeyError for a k that was never measured."""
        return median(self._samples[drafts])
