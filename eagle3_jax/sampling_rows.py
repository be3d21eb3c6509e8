"""The sampling options of a batch as device data, so that no option is ever a reason to compile."""

from dataclasses import dataclass

import jax
from jaxtyping import Array, Float, Int, UInt32

MAX_STOP_IDS = 8
"""Stop ids the device looks for itself; the host looks for all of them."""
MAX_REQUEST_STOP_IDS = 64
"""Ids that may end one request, EOS ids included."""
MAX_BAD_WORDS = 128
MAX_BAD_WORD_TOKENS = 16
MAX_KERNEL_BIASES = 32
"""Ids with a bias that a kernel that chooses a token looks for; more need written logits."""
MAX_LOGPROBS = 20
"""Best tokens whose log-probabilities a request may ask for at every position."""


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
