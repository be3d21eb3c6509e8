"""Rows that go into the cache of latents."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

LatentPool = Float[Array, "pages page_size width"]


class LatentRows(NamedTuple):
    """The rows of one step, as `api.cache_latents` takes them, or as a kernel's refs: all but
    places [rows] and the scale [1] are [rows, numbers], norms are their weights."""

    compressed: Any
    cos: Any
    sin: Any
    pages: Any
    offsets: Any
    norm: Any
    scale: Any
    q_low: Any
    q_norm: Any
