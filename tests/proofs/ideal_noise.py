"""Noise spaces small enough to walk through.

IdealNoise: each id has one of a few Gumbel quantiles; a whole outcome is a number in base `levels`,
one digit for each position and id. IdealStreams: one of a few equal parts of [0, 1) at each use;
an outcome has a digit for each stream, round and position. All outcomes together are every noise
there is, equally likely, so that distributions become counts. Distributions whose probabilities are
thirds have exact counts over six levels: every ratio and every residual of two such distributions
has a denominator that divides six. Of blocks this holds for chosen distributions only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import product

import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from eagle3_jax.collectives import Axis
from eagle3_jax.sampling.noise import Stream
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.speculative import propose as drafts
from eagle3_jax.speculative import rejection


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
        """Count the outcomes of one position that choose each id, by trying them all."""
        counts = np.zeros(self.vocab, np.int64)
        for noise in product(self.quantiles, repeat=self.vocab):
            counts[int(np.argmax(scores + np.array(noise, np.float32)))] += 1
        return counts


OWN = 0
DIGITS = {Stream.DRAFT: 1, Stream.ACCEPT: 2, Stream.RESIDUAL: OWN}
"""The request's own stream and the residual's share a digit: a position needs one of them."""
LEVELS = {Stream.DRAFT: 3, Stream.ACCEPT: 6, Stream.RESIDUAL: 6}


@dataclass(frozen=True)
class IdealStreams:
    """Noise of rounds with `drafts` each, for `positions` from first_position on.

    The rounds begin at one position or another, and each has digits of its own for what it drafts
    and accepts. Drafts are thirds.
    """

    drafts: int
    positions: int
    first_position: int

    @cached_property
    def _digits(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Base and levels of the digit [kind, round, position], and how many outcomes there are."""
        bases = np.ones((len(DIGITS), self.positions, self.positions), np.uint32)
        levels, outcomes = np.ones(len(DIGITS), np.uint32), 1
        for kind in set(DIGITS.values()):
            levels[kind] = max(LEVELS[stream] for stream in DIGITS if DIGITS[stream] == kind)
            for begins in range(1 if kind == OWN else self.positions):
                most = self.positions if kind == OWN else begins + self.drafts
                for position in range(begins, min(most, self.positions)):
                    bases[kind, begins, position] = outcomes
                    outcomes *= int(levels[kind])
        return bases, levels, outcomes

    @property
    def outcomes(self) -> np.ndarray:
        """Every outcome, as seeds."""
        return np.arange(self._digits[-1], dtype=np.uint32)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Puts this noise, and choice by it, in the place of hashes and Gumbel noise."""
        monkeypatch.setattr(Stream, "seed", lambda *inputs: self.stream_seed(*inputs))
        monkeypatch.setattr(rejection, "uniform", self.uniform)
        for module in (rejection, drafts):
            monkeypatch.setattr(module, "draw", self.draw)

    def uniform(self, seed: Array, positions: Array) -> Array:
        """Stands in for eagle3_jax.sampling.noise.uniform: the middle of a part."""
        return self._middle(seed[:, None], positions)

    def draw(
        self,
        logits: Array,
        scores: Array,
        positions: Array,
        seed: Array,
        options: SamplingRows,
        token_ids: Array | None = None,
        axis: Axis = None,
    ) -> Array:
        """Stands in for eagle3_jax.sampling.sampler.draw: the id that a part of [0, 1) falls on."""
        assert axis is None, "distributions are whole here"
        weights = jnp.exp(scores - scores.max(-1, keepdims=True))
        best = jnp.arange(scores.shape[-1]) == scores.argmax(-1)[..., None]
        weights = jnp.where(options.temperature[:, None, None] > 0, weights, best)
        ends = jnp.cumsum(weights, axis=-1) / weights.sum(-1, keepdims=True)
        index = (ends <= self._middle(seed, positions)[..., None]).sum(-1)
        return (index if token_ids is None else token_ids[index]).astype(jnp.int32)

    def stream_seed(self, stream: Stream, seed: Array, starts: Array | None = None) -> Array:
        """Stands in for Stream.seed: the outcome and, in the high word, kind and round."""
        begins = jnp.uint32(0)
        if starts is not None:
            begins = jnp.maximum(starts + 1 - self.first_position, 0).astype(jnp.uint32)
        return seed.at[..., 1].set(DIGITS[stream] + len(DIGITS) * begins)

    def _middle(self, seed: Array, positions: Array) -> Array:
        bases, levels, _ = self._digits
        position = jnp.clip(positions - self.first_position, 0, self.positions - 1)
        begins, kind = jnp.divmod(seed[..., 1].astype(jnp.int32), len(DIGITS))
        begins = jnp.minimum(begins, self.positions - 1)
        base, most = jnp.asarray(bases)[kind, begins, position], jnp.asarray(levels)[kind]
        return ((seed[..., 0] // base % most).astype(jnp.float32) + 0.5) / most
