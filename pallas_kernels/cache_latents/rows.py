"""Rows that go into the cache of latents."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

LatentPool = Float[Array, "pages page_size width"]


class LatentRows(NamedTuple):
    """The rows of one step, as `api.cache_latents` takes them, or as a kernel's refs: compressed
    and q_low [parts, rows, numbers], tables [rows, numbers], places [rows], the scale [1], norms
    their weights."""

    compressed: Any
    cos: Any
    sin: Any
    pages: Any
    offsets: Any
    norm: Any
    scale: Any
    q_low: Any
    q_norm: Any
