"""The factors of float8 KV pools: what is stored times its pool's factor is what was written.

No published checkpoint of Kimi-K2.5 or its drafts has any (Quark's `kv_cache_quant_config` is empty
there, compressed-tensors' `kv_cache_scheme` null), and a factor that nobody chose would saturate
keys in silence. So they are given: one number for all pools, or measured ones.
"""

import math
from dataclasses import dataclass


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
            "(eagle3-bench accept --measure-kv-scales)"
        )
    return given if draft_pools else KVScales(given.target)
