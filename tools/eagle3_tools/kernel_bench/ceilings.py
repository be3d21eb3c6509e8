"""What the GPU can do at all: the limits that every kernel is held against."""

from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec

import jax
import jax.numpy as jnp

from eagle3_tools.kernel_bench.timing import Effort, Spread, time_jax


@dataclass(frozen=True)
class Ceilings:
    """read: bytes a second of a reduction over one large array; copy: bytes read and written.

    bf16: multiplications and additions a second of a square product, of XLA's or PyTorch's library,
    whichever is faster; fp8: the same through torch._scaled_mm, None where that is not there.
    """

    read: float
    copy: float
    bf16: float
    fp8: float | None = None

    def floor_us(self, bytes_moved: int, flops: int, *, fp8: bool) -> float:
        """Microseconds that nothing can beat: the bytes or the arithmetic, whichever is more."""
        peak = self.fp8 or 2 * self.bf16 if fp8 else self.bf16
        return max(bytes_moved / self.read, flops / peak) * 1e6


def measure_ceilings(nbytes: int, size: int, effort: Effort) -> Ceilings:
    """Over arrays of nbytes, and the product of two [size, size] matrices."""
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
        with suppress(RuntimeError, NotImplementedError):  # A GPU, or a build, without float8.
            found[name] = measure(size, samples)
    return found


def per_second(amount: int, us: Spread) -> float:
    """Of an amount that takes this long."""
    return amount / us.median * 1e6
