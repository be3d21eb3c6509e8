"""What the GPU can do at all: the limits that every kernel is held against."""

from dataclasses import dataclass
from importlib.util import find_spec

import jax
import jax.numpy as jnp

from pallas_kernels.bench.timing import Spread, time_jax


@dataclass(frozen=True)
class Ceilings:
    """read: bytes a second of a reduction over one large array; copy: bytes read and written.

    bf16: multiplications and additions a second of a square product; fp8: the same through
    torch._scaled_mm, None where that is not there.
    """

    read: float
    copy: float
    bf16: float
    fp8: float | None = None

    def floor_us(self, bytes_moved: int, flops: int, *, fp8: bool) -> float:
        """Microseconds that nothing can beat: the bytes or the arithmetic, whichever is more."""
        peak = self.fp8 or 2 * self.bf16 if fp8 else self.bf16
        return max(bytes_moved / self.read, flops / peak) * 1e6


def measure_ceilings(nbytes: int, size: int, samples: int) -> Ceilings:
    """Over arrays of nbytes, and the product of two [size, size] matrices."""
    large = jax.random.bits(jax.random.key(0), (nbytes // 4,), jnp.uint32)
    read = time_jax(lambda x: jnp.max(x), [(large,)], samples)
    copy = time_jax(lambda x: x ^ 1, [(large,)], samples)
    a, b = (jax.random.normal(jax.random.key(i), (size, size), jnp.bfloat16) for i in (1, 2))
    product = time_jax(lambda a, b: a @ b, [(a, b)], samples)
    return Ceilings(
        per_second(nbytes, read.us),
        per_second(2 * nbytes, copy.us),
        per_second(2 * size**3, product.us),
        _fp8(size, samples),
    )


def _fp8(size: int, samples: int) -> float | None:
    if find_spec("torch") is None:
        return None
    from pallas_kernels.bench.torch_peers import fp8_ceiling

    try:
        return fp8_ceiling(size, samples)
    except (RuntimeError, NotImplementedError):  # A GPU, or a build of torch, without float8.
        return None


def per_second(amount: int, us: Spread) -> float:
    """Of an amount that takes this long."""
    return amount / us.median * 1e6
