"""Seeds of requests that name none."""

import random
import secrets
from collections.abc import Callable

SEED_BITS = 53
"""Seeds that the server draws stay exact in clients that read every number as a double."""


def seed_source(seed: int | None) -> Callable[[], int]:
    """Draws them: repeatably from a seed of their own, else at random."""
    if seed is None:
        return lambda: secrets.randbits(SEED_BITS)
    source = random.Random(seed)
    return lambda: source.getrandbits(SEED_BITS)
