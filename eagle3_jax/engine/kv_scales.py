"""Scales of float8 KV pools: stored value times scale is the written value.

No published checkpoint of Kimi-K2.5 or its drafts has scales (Quark's `kv_cache_quant_config` is
empty, compressed-tensors' `kv_cache_scheme` null), and a default would saturate keys silently. So
they must be given: one number for all pools, or measured ones.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class KVScales:
    """One scale per pool, in pool order; raises ValueError unless all are positive and finite.

    A target has one pool per layer. A draft has one with latent attention, else keys and values.
    """

    target: tuple[float, ...]
    draft: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        bad = [scale for scale in (*self.target, *self.draft) if not 0 < scale < math.inf]
        if bad:
            raise ValueError(f"factors of a KV cache must be positive and finite, got {bad[0]}")


def pool_scales(given: float | KVScales, target_pools: int, draft_pools: int) -> KVScales:
    """Return the scale of each pool; draft scales are ignored without a draft.

    Raises ValueError if the counts of scales and pools differ.
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
