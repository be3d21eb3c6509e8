"""Operands of `cache_latents`."""

from typing import Any, NamedTuple

from jaxtyping import Array, Float

LatentPool = Float[Array, "pages page_size width"]


class LatentRows(NamedTuple):
    """Rows of one step: arguments of `api.cache_latents`, or refs of compressed and q_low [parts,
    rows, numbers], cos and sin [rows, numbers], pages and offsets [rows], scale [1] and norm
    weights."""

    compressed: Any
    cos: Any
    sin: Any
    pages: Any
    offsets: Any
    norm: Any
    scale: Any
    q_low: Any
    q_norm: Any
