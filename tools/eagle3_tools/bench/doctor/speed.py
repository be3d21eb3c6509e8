"""Whether all devices read and write their memory alike: a slow one slows all of a mesh down."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import jax
import jax.numpy as jnp

from eagle3_tools.aot.workers import Failure
from eagle3_tools.bench.doctor.findings import Finding, numbered
from eagle3_tools.bench.doctor.workers import Work, each

ELEMENTS = 1 << 28
RUNS = 5
SLOW = 0.85
"""Of the median of all devices."""


@dataclass(frozen=True)
class CopySpeed:
    """The job: bytes a second that each device reads and writes, one after another, its best of
    some runs; elements: of the float32 array that each copies."""

    elements: int = ELEMENTS

    def __call__(self) -> list[float]:
        add_one = jax.jit(lambda x: x + 1)
        rates = []
        for device in jax.devices():
            x = jax.block_until_ready(jax.device_put(jnp.zeros(self.elements), device))
            seconds = []
            for _ in range(1 + RUNS):
                begin = time.perf_counter()
                jax.block_until_ready(add_one(x))
                seconds.append(time.perf_counter() - begin)
            rates.append(2 * x.nbytes / min(seconds[1:]))
        return rates


def check_speed(limit_s: float, work: Work) -> Iterator[Finding]:
    """One line where all are alike, else one for those that are slower."""
    (rates,) = each([CopySpeed()], limit_s=limit_s, work=work)
    if isinstance(rates, Failure):
        seen = " ".join([rates.reason, *rates.said.splitlines()[-1:]])
        yield Finding("FAILED", "speed", "of memory", seen, "run it again, and report it")
    else:
        yield speed_finding(rates)


def speed_finding(rates: Sequence[float]) -> Finding:
    """rates: bytes a second of each device."""
    usual = median(rates)
    slow = [device for device, rate in enumerate(rates) if rate < SLOW * usual]
    if not slow:
        return Finding("ok", "speed", "of memory", f"{min(rates) / 1e12:.2f} TB/s or more")
    seen = f"{numbered(slow)}: {min(rates) / 1e12:.2f} TB/s, the others {usual / 1e12:.2f}"
    advice = "another program may run there, or it is too hot: leave it out, or free it"
    return Finding("slow", "speed", "of memory", seen, advice)
