"""Reference implementation of `gqa_share` in plain JAX."""

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.gqa_decode.reference import scores_and_values
from pallas_kernels.mla_share.layout import pack
from pallas_kernels.mla_share.reference import apart, in_one
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.softmax import softmax_and_mass


def gqa_share(
    q: Float[Array, "groups batch q_len heads head_dim"], paged: PagedKV, scale: float
) -> Float[Array, "groups batch q_len heads share"]:
    """Reference implementation of `pallas_kernels.gqa_share.api.gqa_share`."""
    scores, values = scores_and_values(in_one(q), paged, scale)
    weights, mass = softmax_and_mass(scores[:, :, 0])
    mean = jnp.einsum("bqhs,bsd->bqhd", weights.astype(values.dtype), values[:, :, 0])
    return apart(pack(mean, mass, q.dtype), len(q))
