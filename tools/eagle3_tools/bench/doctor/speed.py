"""Compare the memory bandwidth of all devices; a slow device slows its whole mesh."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import jax
import jax.numpy as jnp

from eagle3_tools.bench.doctor.findings import Finding, Run, numbered
from eagle3_tools.checks.pool import Failure

ELEMENTS = 1 << 28
RUNS = 5
SLOW = 0.85
"""A device below this fraction of the median is slow."""


@dataclass(frozen=True)
class CopySpeed:
    """Job that copies `elements` float32 on each device in turn and returns the best bytes/s."""

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


def check_speed(run: Run) -> Iterator[Finding]:
    """Yield one line: all devices are alike, or some are slower."""
    (rates,) = run([CopySpeed()])
    if isinstance(rates, Failure):
        yield Finding("FAILED", "speed", "of memory", rates.brief, "run it again, and report it")
    else:
        yield speed_finding(rates)


def speed_finding(rates: Sequence[float]) -> Finding:
    """Judge the devices by their bytes per second."""
    usual = median(rates)
    slow = [device for device, rate in enumerate(rates) if rate < SLOW * usual]
    if not slow:
        return Finding("ok", "speed", "of memory", f"{min(rates) / 1e12:.2f} TB/s or more")
    seen = f"{numbered(slow)}: {min(rates) / 1e12:.2f} TB/s, the others {usual / 1e12:.2f}"
    advice = "another program may run there, or it is too hot: leave it out, or free it"
    return Finding("slow", "speed", "of memory", seen, advice)
