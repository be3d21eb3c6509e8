"""Seeds of requests that specify none."""

import random
import secrets
from collections.abc import Callable

SEED_BITS = 53
"""Clients that read every number as a double get these seeds exactly."""


def seed_source(seed: int | None) -> Callable[[], int]:
    """Return a source of seeds: reproducible if `seed` is given, else random."""
    if seed is None:
        return lambda: secrets.randbits(SEED_BITS)
    source = random.Random(seed)
    return lambda: source.getrandbits(SEED_BITS)
