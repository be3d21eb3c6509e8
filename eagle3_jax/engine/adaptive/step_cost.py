"""What a round costs: seconds of each k, as a running quantile of what was measured last."""

from collections import deque

SAMPLES = 9
"""So many are remembered, and a quarter of them may be better than what is given: whatever disturbs
a round makes it longer, never shorter."""


class StepCosts:
    """Seconds of one round of one batch shape, by k."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}

    def observe(self, drafts: int, seconds: float) -> None:
        """Takes one measured round. The first one of a k is left out: it also pays for memory that
        its program never touched before."""
        if drafts in self._samples:
            self._samples[drafts].append(seconds)
        else:
            self._samples[drafts] = deque(maxlen=SAMPLES)

    def count(self, drafts: int) -> int:
        """How many measurements are remembered."""
        return len(self._samples.get(drafts, ()))

    def seconds(self, drafts: int) -> float:
        """The lower quartile; KeyError for a k that was never run."""
        samples = sorted(self._samples[drafts])
        return samples[len(samples) // 4]
