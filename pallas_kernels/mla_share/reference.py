"""Reference implementations of `attend_share` and `share_values` in plain JAX."""

from functools import reduce
from operator import add

import jax.numpy as jnp
from jaxtyping import Array, Float

from pallas_kernels.mla_decode.reference import scores_and_rows
from pallas_kernels.mla_share.layout import MASS, pack, unpack
from pallas_kernels.paged.kv import PagedKV
from pallas_kernels.paged.softmax import softmax_and_mass


def attend_share(
    q_latent: Float[Array, "groups batch q_len heads kv_lora"],
    q_rope: Float[Array, "groups batch q_len heads rope"],
    paged: PagedKV,
    scale: float,
) -> Float[Array, "groups batch q_len heads share"]:
    """Reference implementation of `pallas_kernels.mla_share.api.attend_share`."""
    groups, *_, kv_lora = q_latent.shape
    scores, rows = scores_and_rows(in_one(q_latent), in_one(q_rope), paged, scale)
    weights, mass = softmax_and_mass(scores)
    latent = rows[..., :kv_lora]
    mean = jnp.einsum("bqhs,bsl->bqhl", weights.astype(latent.dtype), latent)
    return apart(pack(mean, mass, q_latent.dtype), groups)


def share_values(
    shares: Float[Array, "groups batch q_len heads share"],
    value_kernel: Float[Array, "heads kv_lora value"],
) -> Float[Array, "batch q_len heads value"]:
    """Reference implementation of `pallas_kernels.mla_share.api.share_values`."""
    return jnp.einsum("bqhc,hcd->bqhd", join_shares(shares), value_kernel)


def join_shares(
    shares: Float[Array, "groups batch q_len heads share"],
) -> Float[Array, "batch q_len heads dim"]:
    """Join the partial attention of `groups` devices to the same heads. Means are weighted by their
    masses and added in float32 in the order of the groups; rows without a visible slot in any group
    are 0."""
    means, log_mass = unpack(shares, shares.shape[-1] - MASS)
    weights = jnp.exp2(log_mass - log_mass.max(axis=0))
    total = reduce(add, weights[..., None] * means.astype(jnp.float32))
    return (total / reduce(add, weights)[..., None]).astype(shares.dtype)


def in_one(
    queries: Float[Array, "groups batch q_len heads dim"],
) -> Float[Array, "batch q_len all_heads dim"]:
    """Concatenate the heads of all groups, in the order of the groups."""
    return jnp.concatenate(list(queries), axis=2)


def apart(
    rows: Float[Array, "batch q_len all_heads share"], groups: int
) -> Float[Array, "groups batch q_len heads share"]:
    """Split heads into groups again: the inverse of `in_one`."""
    return jnp.stack(jnp.split(rows, groups, axis=2))
