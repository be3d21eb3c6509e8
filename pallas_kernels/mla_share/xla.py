"""CPU implementation of `attend_share`: one copy of a chunk serves all groups."""

from jaxtyping import Array, Float

from pallas_kernels.mla_decode.xla import mean_and_mass
from pallas_kernels.mla_share.layout import pack
from pallas_kernels.mla_share.reference import apart, in_one
from pallas_kernels.paged.kv import PagedKV


def attend_share(
    q_latent: Float[Array, "groups batch q_len heads kv_lora"],
    q_rope: Float[Array, "groups batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
) -> Float[Array, "groups batch q_len heads share"]:
    """CPU implementation of `pallas_kernels.mla_share.api.attend_share`."""
    found = mean_and_mass(in_one(q_latent), in_one(q_rope), paged, scale)
    return apart(pack(*found, q_latent.dtype), q_latent.shape[0])
