"""Measured limits of the GPU, which kernels are compared with."""

from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

import jax
import jax.numpy as jnp

from eagle3_tools.kernel_bench.timing import Effort, Spread, time_jax


@dataclass(frozen=True)
class Ceilings:
    """Rates that the GPU reaches.

    read: bytes a second of a reduction over a large array; copy: bytes read and written a second.
    bf16: multiplications and additions a second of a square product, by XLA's or PyTorch's library,
    whichever is faster; fp8: the same with torch._scaled_mm, None if unavailable.
    """

    read: float
    copy: float
    bf16: float
    fp8: float | None = None

    def __str__(self) -> str:
        fp8 = "not measured" if self.fp8 is None else f"{self.fp8 / 1e12:.0f} TFLOP/s"
        return (
            f"ceilings: reads {self.read / 1e12:.2f} TB/s, copies {self.copy / 1e12:.2f} TB/s, "
            f"bf16 {self.bf16 / 1e12:.0f} TFLOP/s, fp8 {fp8}"
        )

    def floor_us(self, bytes_moved: int, flops: int, *, fp8: bool) -> float:
        """Return the least microseconds for the bytes or the arithmetic, whichever takes longer."""
        peak = self.fp8 or 2 * self.bf16 if fp8 else self.bf16
        return max(bytes_moved / self.read, flops / peak) * 1e6


def measure_ceilings(nbytes: int, size: int, effort: Effort) -> Ceilings:
    """Measure with arrays of `nbytes` and a product of two [size, size] matrices."""
    large = jax.random.bits(jax.random.key(0), (nbytes // 4,), jnp.uint32)
    read = time_jax(lambda x: jnp.max(x), (large,), effort)
    copy = time_jax(lambda x: x ^ 1, (large,), effort)
    a, b = (jax.random.normal(jax.random.key(i), (size, size), jnp.bfloat16) for i in (1, 2))
    product = time_jax(lambda a, b: a @ b, (a, b), effort)
    bf16 = per_second(2 * size**3, product.us)
    libraries = _torch(size, effort.samples)
    return Ceilings(
        per_second(nbytes, read.us),
        per_second(2 * nbytes, copy.us),
        max(bf16, libraries.get("bf16", 0.0)),
        libraries.get("fp8"),
    )


def _torch(size: int, samples: int) -> dict[str, float]:
    if find_spec("torch") is None:
        return {}
    from eagle3_tools.kernel_bench.peers.by_torch import bf16_ceiling, fp8_ceiling

    found = {}
    for name, measure in {"bf16": bf16_ceiling, "fp8": fp8_ceiling}.items():
        with suppress(RuntimeError, NotImplementedError):  # A GPU or a build without float8.
            found[name] = measure(size, samples)
    return found


def per_second(amount: int, us: Spread) -> float:
    """Return the rate for an amount that takes `us`."""
    return amount / us.median * 1e6
