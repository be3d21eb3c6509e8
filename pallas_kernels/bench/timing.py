"""Times of one launch in a row of many, over arguments that no cache holds any more."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import jax
import jax.numpy as jnp

CACHE_BYTES = 256 << 20
"""Larger than the last cache of an H200 (50 MB) and of an MI355X (256 MB)."""
FEWEST_COPIES, MOST_COPIES = 4, 32
SAMPLES = 20
_CALLS = 4


@dataclass(frozen=True)
class Spread:
    """Microseconds: the median of the samples and their quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timed:
    """us: of one run in a row; with_launch_us: of one call that is waited for."""

    us: Spread
    with_launch_us: Spread


def copies_for(nbytes: int) -> int:
    """How many sets of arguments are rotated: one where a single set is past every cache."""
    if nbytes >= CACHE_BYTES:
        return 1
    return min(MOST_COPIES, max(FEWEST_COPIES, math.ceil(CACHE_BYTES / max(nbytes, 1))))


def rotated(arguments: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """The arguments and as many copies of them as it takes."""
    count = copies_for(sum(leaf.nbytes for leaf in jax.tree.leaves(arguments)))
    return [arguments, *(jax.tree.map(jnp.copy, arguments) for _ in range(count - 1))]


def time_jax(
    run: Callable[..., Any], arguments: Sequence[tuple[Any, ...]], samples: int = SAMPLES
) -> Timed:
    """run(*arguments[i]) for every i in one compiled program, so that no launch is paid alone."""
    together = jax.jit(lambda sets: [run(*each) for each in sets])
    alone = jax.jit(lambda *each: run(*each))
    row = together.lower(list(arguments)).compile()
    one = alone.lower(*arguments[0]).compile()

    def several() -> None:
        jax.block_until_ready([row(list(arguments)) for _ in range(_CALLS)][-1])

    def single() -> None:
        jax.block_until_ready(one(*arguments[0]))

    return Timed(sampled(several, _CALLS * len(arguments), samples), sampled(single, 1, samples))


def sampled(call: Callable[[], None], runs: int, samples: int = SAMPLES) -> Spread:
    """Microseconds of one of the `runs` runs that a call makes and waits for; two calls warm up."""
    taken = []
    for _ in range(samples + 2):
        begin = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begin) / runs * 1e6)
    low, median, high = quantiles(taken[2:], n=4) if samples > 1 else [taken[-1]] * 3
    return Spread(round(median, 3), round(low, 3), round(high, 3))
