"""Rows that go into the cache, and their norms: each of one vector of all heads."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

from pallas_kernels.rms_norm import Norm

HeadPool = Float[Array, "pages page_size kv_heads head_dim"]
Cached = tuple[Float[Array, "batch q_len heads head_dim"], HeadPool, HeadPool]


class HeadNorms(NamedTuple):
    """q, k: weights of the heads that are here. squares: what `head_squares` gives, summed over
    the `devices` that hold as many heads each."""

    q: Norm
    k: Norm
    squares: Float[Array, "batch q_len 2"]
    devices: int


class HeadRows(NamedTuple):
    """The rows of one step, as `api.cache_heads` takes them, or as a kernel's refs: heads
    [parts, rows, heads, head_dim], tables [rows, half], places [rows], scales [1]; of norms the
    squares [rows, 2] and both weights."""

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
