"""Operands of `cache_heads`: the rows to cache, and norms that span all heads."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from pallas_kernels.rms_norm import Norm

HeadPool = Float[Array, "pages page_size kv_heads head_dim"]
Cached = tuple[Float[Array, "batch q_len heads head_dim"], HeadPool, HeadPool]


class HeadNorms(NamedTuple):
    """Norms over the heads of all devices. q, k: weights of this device's heads. squares: sums from
    `head_squares`, added over the `devices`, which hold equally many heads."""

    q: Norm
    k: Norm
    squares: Float[Array, "batch q_len 2"]
    devices: int


class HeadRows(NamedTuple):
    """Rows of one step: arguments of `api.cache_heads`, or refs of heads [parts, rows, heads,
    head_dim], cos and sin [rows, half], pages and offsets [rows], scales [1], squares [rows, 2] and
    weights."""

    q: Any
    k: Any
    v: Any
    cos: Any
    sin: Any
    pages: Any
    offsets: Any
    k_scale: Any
    v_scale: Any
    norms: Any
