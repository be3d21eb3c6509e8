"""Measurement of float8 KV scales: the largest magnitude in each pool."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle3_jax.cache import SCRATCH_PAGE, KVPool, KVPools, rows_and_scale
from eagle3_jax.engine.config import KVScales
from pallas_kernels.paged.rows import FP8_MAX

HEADROOM = 2.0
"""Factor between a measured peak and the scale's range. The room costs nothing: float8 rounds
relatively, and the values that become too small for it are negligible."""


@dataclass(frozen=True)
class KVPeaks:
    """The largest magnitude in each pool."""

    target: tuple[float, ...]
    draft: tuple[float, ...]

    def merged(self, other: "KVPeaks") -> "KVPeaks":
        """Return the elementwise maximum."""
        return KVPeaks(
            tuple(map(max, self.target, other.target)), tuple(map(max, self.draft, other.draft))
        )

    @property
    def scales(self) -> KVScales:
        """Scales with HEADROOM; raise ValueError for a pool without valid data."""

        def of(peaks: Sequence[float]) -> tuple[float, ...]:
            return tuple(HEADROOM * peak / FP8_MAX for peak in peaks)

        return KVScales(of(self.target), of(self.draft))


@jax.jit
def pool_peaks(pools: KVPools) -> list[Float[Array, ""]]:
    """Return the largest magnitude of each pool, without the scratch page."""

    def peak(pool: KVPool) -> Array:
        rows, scale = rows_and_scale(pool)
        largest = jnp.max(jnp.abs(rows[SCRATCH_PAGE + 1 :].astype(jnp.float32)))
        return largest if scale is None else largest * scale

    return [peak(pool) for pool in pools]
