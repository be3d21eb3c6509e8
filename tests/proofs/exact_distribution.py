"""The distribution of one token in float64 by sorting; a chi-square test of draws against it."""

import numpy as np

from eagle3_jax.sampling.params import SamplingParams

CUT_TOLERANCE = 1e-3
"""Float32 sums over a large vocabulary may move a cut by so much of a score."""
LEAST_EXPECTED = 8.0
"""Draws that a bin has to expect."""
QUANTILE = 3.72
"""Of the normal distribution: a sampler that is right fails once in 10,000 seeds."""


def exact_distribution(logits: np.ndarray, options: SamplingParams) -> np.ndarray:
    """float64 [vocab]. Candidates tied with the last one kept are kept."""
    scaled = logits.astype(np.float64) / options.temperature
    probs = np.exp(scaled - scaled.max())
    probs[probs < options.min_p] = 0
    if 0 < options.top_k < probs.size:
        probs[probs < np.sort(probs)[-options.top_k]] = 0
    probs /= probs.sum()
    if options.top_p < 1:
        ordered = np.sort(probs)[::-1]
        probs[probs < ordered[np.searchsorted(np.cumsum(ordered), options.top_p - 1e-12)]] = 0
        probs /= probs.sum()
    if options.typical_p < 1:
        surprisal = -np.log(np.maximum(probs, 1e-300))
        distance = np.where(probs > 0, np.abs(surprisal - probs @ surprisal), np.inf)
        order = np.argsort(distance)
        last = np.searchsorted(np.cumsum(probs[order]), options.typical_p - 1e-12)
        probs[distance > distance[order[last]] + 1e-12] = 0
    return probs / probs.sum()


def check_draws(tokens: np.ndarray, logits: np.ndarray, options: SamplingParams) -> None:
    """Draws [n] follow the exact distribution: nothing beyond the cuts, and a chi-square over bins
    of tokens in order of probability."""
    distribution = exact_distribution(logits, options)
    order = np.argsort(-distribution, kind="stable")[: np.count_nonzero(distribution)]
    outside = logits[tokens[distribution[tokens] == 0]] / options.temperature
    lowest = logits[order[-1]] / options.temperature
    assert (outside > lowest - CUT_TOLERANCE).all(), "a token that the options exclude was drawn"
    rank = np.full(distribution.size, order.size - 1)
    rank[order] = np.arange(order.size)
    starts = _bin_starts(distribution[order] * tokens.size)
    counts = np.add.reduceat(np.bincount(rank[tokens], minlength=order.size), starts)
    expected = np.add.reduceat(distribution[order] * tokens.size, starts)
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic <= _limit(len(starts) - 1), "the draws do not follow the distribution"


def _bin_starts(expected: np.ndarray) -> np.ndarray:
    """Return starts of bins that each expect at least LEAST_EXPECTED draws."""
    total, starts = np.cumsum(expected), [0]
    while True:
        before = total[starts[-1] - 1] if starts[-1] else 0.0
        end = int(np.searchsorted(total, before + LEAST_EXPECTED)) + 1
        if end >= len(total) or total[-1] - total[end - 1] < LEAST_EXPECTED:
            return np.array(starts)
        starts.append(end)


def _limit(freedom: int) -> float:
    """The chi-square distribution's quantile by Wilson and Hilferty; one bin leaves nothing to
    test."""
    if freedom == 0:
        return 0.0
    spread = 2 / (9 * freedom)
    return freedom * (1 - spread + QUANTILE * np.sqrt(spread)) ** 3
