"""A noise space small enough to walk through: each id has one of a few Gumbel quantiles.

A whole outcome is a number in base `levels`, one digit for each position and id. All outcomes
together are every noise there is, equally likely, so that distributions become counts.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


@dataclass(frozen=True)
class IdealNoise:
    """levels: quantiles of the Gumbel distribution that an id may have. positions: how many have
    noise."""

    levels: int
    vocab: int
    positions: int
    first_position: int

    @property
    def outcomes(self) -> np.ndarray:
        """Every outcome, as seeds."""
        return np.arange(self.levels ** (self.vocab * self.positions), dtype=np.uint32)

    @property
    def quantiles(self) -> np.ndarray:
        """Gumbel quantiles at the middles of equal parts."""
        middles = (np.arange(self.levels) + 0.5) / self.levels
        return (-np.log(-np.log(middles))).astype(np.float32)

    def gumbel(self) -> Callable[[Array, Array, Array], Array]:
        """Stands in for eagle3_jax.sampling.sampler.gumbel; a row's seed is its whole outcome.

        Positions past the last repeat it: nothing that counts is drawn there.
        """
        bases = jnp.asarray(self.levels ** np.arange(self.vocab * self.positions), jnp.uint32)
        quantiles = jnp.asarray(self.quantiles)

        def gumbel(seed: Array, positions: Array, token_ids: Array) -> Array:
            step = jnp.clip(positions - self.first_position, 0, self.positions - 1)
            base = bases[step[..., None] * self.vocab + token_ids]
            digit = (seed[..., 0][..., None] // base) % jnp.uint32(self.levels)
            return quantiles[digit.astype(jnp.int32)]

        return gumbel

    def counted_distribution(self, scores: np.ndarray) -> np.ndarray:
        """How many of one position's outcomes choose each id, by walking through them."""
        counts = np.zeros(self.vocab, np.int64)
        for noise in product(self.quantiles, repeat=self.vocab):
            counts[int(np.argmax(scores + np.array(noise, np.float32)))] += 1
        return counts
