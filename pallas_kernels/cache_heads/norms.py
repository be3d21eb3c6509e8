"""Norms of queries and of keys, each as one vector of all heads."""

from typing import NamedTuple

from jaxtyping import Array, Float

from pallas_kernels.rms_norm import Norm


class HeadNorms(NamedTuple):
    """q, k: weights of the heads that are here. squares: what `head_squares` gives, summed over
    the `devices` that hold as many heads each."""

    q: Norm
    k: Norm
    squares: Float[Array, "batch q_len 2"]
    devices: int
