"""Accept lengths: tokens that a round of k drafts yields."""

from collections.abc import Sequence
from itertools import accumulate, pairwise

ACCEPT_LENGTHS = (1.0, 1.83, 2.43, 2.88, 3.24, 3.46, 3.62, 3.71, 3.77)
"""For k = 0..8: InferenceX's golden_al_distribution/kimik2.5_eagle3.yaml, SPEED-Bench coding with
thinking. Accept lengths of random prompts are higher and mean nothing."""


def accept_lengths(acceptance: Sequence[float]) -> tuple[float, ...]:
    """Return accept lengths for k = 0, 1, …: one target token, plus each draft's probability that
    it and all before it are accepted. Raises ValueError for invalid probabilities."""
    if not all(after <= before for before, after in pairwise((1.0, *acceptance, 0.0))):
        raise ValueError(
            "--acceptance must be probabilities that a position and all before it are accepted, "
            f"so 1 or less and never rising; got {', '.join(map(str, acceptance))}"
        )
    return tuple(accumulate(acceptance, initial=1.0))
