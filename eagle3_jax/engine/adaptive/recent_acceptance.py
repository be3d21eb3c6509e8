"""Acceptance rates of drafts by position, as exponentially weighted means."""

from itertools import accumulate
from operator import mul

HALF_LIFE = 512
"""Number of drafts at a position after which an older observation counts half."""
DECAY = 0.5 ** (1 / HALF_LIFE)
PRIOR_TRIES, PRIOR_RATE = 4.0, 0.8
"""Prior before any observation, high enough that drafting is tried."""


class RecentAcceptance:
    """P(draft i is accepted | it was verified and all before it were), for i = 1..k."""

    def __init__(self, num_speculative_tokens: int) -> None:
        self._tried = [PRIOR_TRIES] * num_speculative_tokens
        self._accepted = [PRIOR_TRIES * PRIOR_RATE] * num_speculative_tokens

    def observe(self, verified: int, accepted: int) -> None:
        """Record one verify of one sequence: of `verified` drafts the first `accepted` held."""
        for position in range(min(accepted + 1, verified)):
            self._tried[position] = self._tried[position] * DECAY + 1
            self._accepted[position] = self._accepted[position] * DECAY + (position < accepted)

    @property
    def rates(self) -> list[float]:
        """Conditional acceptance probabilities by position."""
        return [a / t for a, t in zip(self._accepted, self._tried, strict=True)]

    def expected_tokens(self) -> list[float]:
        """Return the mean tokens, bonus included, that rounds of 0..k drafts commit."""
        return list(accumulate(accumulate(self.rates, mul, initial=1.0)))
