"""Time of one run in a chain of runs, on arguments that are not in any cache."""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from statistics import quantiles
from typing import Any

import jax
import jax.numpy as jnp

from pallas_kernels import gpu

CACHE_BYTES = 512 << 20
"""Twice the last cache of an MI355X (256 MB); an H200's has 50 MB."""
FEWEST_COPIES, MOST_COPIES = 4, 32
_PROGRAM_US = 1000.0
"""Device time of a program that makes its dispatch, about 100 us, negligible."""
_BYTES_A_US = 4e6


@dataclass(frozen=True)
class Effort:
    """samples: of every time. most_runs: in one program. calls: of it before waiting for one."""

    samples: int = 20
    most_runs: int = 128
    calls: int = 4


DRY = Effort(samples=2, most_runs=2, calls=1)


@dataclass(frozen=True)
class Spread:
    """Microseconds: the median of the samples and their quartiles."""

    median: float
    low: float
    high: float


@dataclass(frozen=True)
class Timed:
    """us: of one run in a chain. with_launch_us: of one call, including the wait for it."""

    us: Spread
    with_launch_us: Spread


@dataclass(frozen=True)
class Chain:
    """Number of runs in a program, and of copies of its arguments."""

    copies: int
    runs: int

    @classmethod
    def of(cls, nbytes: int, effort: Effort) -> "Chain":
        """Choose a chain for arguments of `nbytes`, from which the time of a run is estimated."""
        enough = math.ceil(_PROGRAM_US * _BYTES_A_US / max(nbytes, 1))
        copies = min(copies_for(nbytes), effort.most_runs)
        return cls(copies, min(effort.most_runs, max(copies, enough)))


def copies_for(nbytes: int) -> int:
    """Return how many sets of arguments to rotate: one if a single set exceeds every cache."""
    if nbytes >= CACHE_BYTES:
        return 1
    return min(MOST_COPIES, max(FEWEST_COPIES, math.ceil(CACHE_BYTES / max(nbytes, 1))))


def nbytes_of(arguments: Any) -> int:
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(arguments))


def rotated(arguments: tuple[Any, ...], copies: int) -> list[tuple[Any, ...]]:
    """Return the arguments and copies of them, `copies` sets in all."""
    return [arguments, *(jax.tree.map(jnp.copy, arguments) for _ in range(copies - 1))]


@dataclass(frozen=True)
class Programs:
    """A function compiled alone, and as a chain of runs that depend on each other."""

    alone: Callable[..., Any]
    chained: Callable[..., Any]
    chain: Chain

    def time(self, sets: Sequence[tuple[Any, ...]], effort: Effort) -> Timed:
        """Time both programs on the chain's copies of the arguments."""

        def several() -> None:
            jax.block_until_ready([self.chained(list(sets)) for _ in range(effort.calls)][-1])

        def single() -> None:
            jax.block_until_ready(self.alone(*sets[0]))

        runs, samples = effort.calls * self.chain.runs, effort.samples
        return Timed(sampled(several, runs, samples), sampled(single, 1, samples))


def compile_chain(
    run: Callable[..., Any],
    shapes: tuple[Any, ...],
    chain: Chain,
    turn: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Programs:
    """Compile for such arguments (arrays or shapes). turn: context entered for each program."""
    once = jax.jit(lambda *each: run(*each))
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), shapes)
    found = []
    for function, arguments in (
        (once, shapes),
        (chained(once, chain.runs), ([one] * chain.copies,)),
    ):
        with turn():
            lowered = jax.jit(function).lower(*arguments)
            found.append(lowered.compile(compiler_options=gpu.compiler_options()))
    return Programs(found[0], found[1], chain)


def chained(once: Callable[..., Any], runs: int) -> Callable[..., list[Any]]:
    """Return a program of once(*sets[i]) for i = 0, 1, … in sequence. No launch is paid separately
    or overlaps another, as in a CUDA graph of one stream."""

    def together(sets: list[tuple[Any, ...]]) -> list[Any]:
        results: list[Any] = [()]
        for i in range(runs):
            waiting = sets[i % len(sets)], results[-1]
            arguments, _ = jax.lax.optimization_barrier(waiting)
            results.append(once(*arguments))
        return results[1:]

    return together


def time_jax(
    run: Callable[..., Any], arguments: tuple[Any, ...], effort: Effort = Effort()
) -> Timed:
    """Compile run(*arguments) and time it."""
    programs = compile_chain(run, arguments, Chain.of(nbytes_of(arguments), effort))
    return programs.time(rotated(arguments, programs.chain.copies), effort)


def sampled(call: Callable[[], None], runs: int, samples: int) -> Spread:
    """Return the microseconds of one of the `runs` runs of a call, after two calls to warm up."""
    taken = []
    for _ in range(samples + 2):
        begin = time.perf_counter()
        call()
        taken.append((time.perf_counter() - begin) / runs * 1e6)
    low, median, high = (
        quantiles(taken[2:], n=4, method="inclusive") if samples > 1 else [taken[-1]] * 3
    )
    return Spread(round(median, 3), round(low, 3), round(high, 3))
