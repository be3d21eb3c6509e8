"""CPU implementation of `gqa_share`: one copy of a chunk serves all groups."""

from jaxtyping import Array, Float

from pallas_kernels.gqa_decode.xla import mean_and_mass
from pallas_kernels.mla_share.layout import pack
from pallas_kernels.mla_share.reference import apart, in_one
from pallas_kernels.paged.kv import PagedKV


def gqa_share(
    q: Float[Array, "groups batch q_len heads head_dim"], paged: PagedKV, scale: float
) -> Float[Array, "groups batch q_len heads share"]:
    """CPU implementation of `pallas_kernels.gqa_share.api.gqa_share`."""
    return apart(pack(*mean_and_mass(in_one(q), paged, scale), q.dtype), len(q))
