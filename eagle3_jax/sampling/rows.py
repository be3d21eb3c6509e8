"""The sampling options of a batch as device data, so that no option is ever a reason to compile."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int, UInt32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SamplingRows:
    """The sampling options of each sequence of a batch.

    temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off. seed holds the low and the high
    word. stop_ids, padded with -1, cannot be sampled at positions before min_len.
    """

    temperature: Float[Array, " batch"]
    top_p: Float[Array, " batch"]
    min_p: Float[Array, " batch"]
    top_k: Int[Array, " batch"]
    seed: UInt32[Array, "batch 2"]
    min_len: Int[Array, " batch"]
    stop_ids: Int[Array, "batch max_stop_ids"]
