"""GPU kernel of `gqa_share`: the kernel of `gqa_decode` on the rows of all devices."""

import math
from functools import partial

import jax
from jax.experimental import pallas as pl
from jaxtyping import Array, Float

from pallas_kernels.gqa_decode.pallas import attend_part, choose_tiles
from pallas_kernels.mla_share.layout import MASS
from pallas_kernels.mla_share.pallas import merge_shares
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.split_kv import attend_in_parts


def gqa_share(
    q: Float[Array, "groups batch q_len heads head_dim"], paged: PagedKV, scale: float
) -> Float[Array, "groups batch q_len heads share"]:
    """Implement `pallas_kernels.gqa_share.api.gqa_share` as a GPU kernel."""
    groups, batch, q_len, heads, head_dim = q.shape
    rows, by_group = groups * q_len * heads, (groups, batch, q_len * heads)
    tiles = choose_tiles(rows, 1, head_dim, q.dtype, paged.pools[0].dtype)
    parts = attend_in_parts(
        partial(attend_part, shared=heads, scale=scale * math.log2(math.e)),
        name="gqa_share",
        queries=(q.reshape(*by_group, head_dim),),
        paged=paged,
        dim=head_dim,
        row_tiles=pl.cdiv(rows, tiles.rows),
        tiles=tiles,
    )
    out = jax.ShapeDtypeStruct((*by_group, head_dim + MASS), q.dtype)
    return merge_shares(*parts, out, name="gqa_share_merge").reshape(*q.shape[:-1], -1)
