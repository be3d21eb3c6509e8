"""Cost of a round: seconds of each k, as a running quantile of recent measurements."""

from collections import deque

SAMPLES = 9
"""Number of remembered samples. The lower quartile is used, because disturbances only make rounds
longer."""


class StepCosts:
    """Seconds of one round of one batch shape, by k."""

    def __init__(self) -> None:
        self._samples: dict[int, deque[float]] = {}

    def observe(self, drafts: int, seconds: float) -> None:
        """Record one measured round, except a k's first, which pays for memory it touches first."""
        if drafts in self._samples:
            self._samples[drafts].append(seconds)
        else:
            self._samples[drafts] = deque(maxlen=SAMPLES)

    def count(self, drafts: int) -> int:
        """Return the number of remembered measurements."""
        return len(self._samples.get(drafts, ()))

    def seconds(self, drafts: int) -> float:
        """Return the lower quartile; raise KeyError for a k that was never run."""
        samples = sorted(self._samples[drafts])
        return samples[len(samples) // 4]
