"""The factors of float8 KV pools: what is stored times its pool's factor is what was written.

No published checkpoint of Kimi-K2.5 or its drafts has any (Quark's `kv_cache_quant_config` is empty
there, compressed-tensors' `kv_cache_scheme` null), and a factor that nobody chose would saturate
keys in silence. So they are given: one number for all pools, or measured ones.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from eagle3_jax.cache import SCRATCH_PAGE, KVPool, KVPools, rows_and_scale
from pallas_kernels.paged_rows import FP8_MAX

HEADROOM = 2.0
"""A measured factor has room for values so much larger than all that were seen. It costs nothing:
float8 rounds relatively, and the values that become too small for it count for nothing."""


@dataclass(frozen=True)
class KVScales:
    """One factor a pool, in the order of the pools: a target has one pool a layer, a draft with
    latent attention one, another its keys' and its values'.

    Raises ValueError unless all are positive and finite.
    """

    target: tuple[float, ...]
    draft: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        bad = [scale for scale in (*self.target, *self.draft) if not 0 < scale < math.inf]
        if bad:
            raise ValueError(f"factors of a KV cache must be positive and finite, got {bad[0]}")


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


def pool_scales(given: float | KVScales, target_pools: int, draft_pools: int) -> KVScales:
    """The factor of each pool. Without a draft its factors are not looked at.

    Raises ValueError where there are not as many as pools.
    """
    if not isinstance(given, KVScales):
        return KVScales((given,) * target_pools, (given,) * draft_pools)
    found = len(given.target), len(given.draft) if draft_pools else 0
    if found != (target_pools, draft_pools):
        raise ValueError(
            f"kv_cache_scale has factors for {found[0]} pools of the target and {found[1]} of the "
            f"draft; there are {target_pools} and {draft_pools}: measure them for this pair "
            "(eagle3-bench kv-cache --measure)"
        )
    return given if draft_pools else KVScales(given.target)
