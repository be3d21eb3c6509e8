"""Measuring the factors of float8 KV pools: the largest magnitude that each pool holds."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle3_jax.cache import SCRATCH_PAGE, KVPool, KVPools, rows_and_scale
from eagle3_jax.engine.kv.scales import KVScales
from pallas_kernels.paged.rows import FP8_MAX

HEADROOM = 2.0
"""A measured factor has room for values so much larger than all that were seen. It costs nothing:
float8 rounds relatively, and the values that become too small for it count for nothing."""


@dataclass(frozen=True)
class KVPeaks:
    """The largest magnitude that each pool holds."""

    target: tuple[float, ...]
    draft: tuple[float, ...]

    def merged(self, other: "KVPeaks") -> "KVPeaks":
        """The larger ones."""
        return KVPeaks(
            tuple(map(max, self.target, other.target)), tuple(map(max, self.draft, other.draft))
        )

    @property
    def scales(self) -> KVScales:
        """Factors with HEADROOM. Raises ValueError where a pool holds nothing or no numbers."""

        def of(peaks: Sequence[float]) -> tuple[float, ...]:
            return tuple(HEADROOM * peak / FP8_MAX for peak in peaks)

        return KVScales(of(self.target), of(self.draft))


@jax.jit
def pool_peaks(pools: KVPools) -> list[Float[Array, ""]]:
    """The largest magnitude of each pool, without the scratch page."""

    def peak(pool: KVPool) -> Array:
        rows, scale = rows_and_scale(pool)
        largest = jnp.max(jnp.abs(rows[SCRATCH_PAGE + 1 :].astype(jnp.float32)))
        return largest if scale is None else largest * scale

    return [peak(pool) for pool in pools]
