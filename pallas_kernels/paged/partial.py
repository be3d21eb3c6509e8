"""Partial attention: output and log-sum-exp of one part of a context that devices share.

A row is the mean of the values, then the logarithm of its mass: the sum of exp(score). Both are in
one array, for one collective. The mass is a float32; a bfloat16 has a third of its
significant bits, so three of them hold it exactly.
"""

from functools import reduce
from operator import add

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.paged.kernel import LOWEST
from pallas_kernels.paged.kv import PagedKV

MASS = 8
"""Numbers after a row's mean: enough to align each bfloat16 row to 16 bytes."""
_UPPER_HALF = 0xFFFF0000


def terms_of(dtype: DTypeLike) -> int:
    """Return how many of the MASS numbers add up to the log mass; the others are 0."""
    return 3 if dtype == jnp.bfloat16 else 1


def terms(log_mass: Float[Array, "*rows"], dtype: DTypeLike) -> list[Float[Array, "*rows"]]:
    """Split log_mass into float32 numbers that are exact in `dtype` and add up to it. Each is the
    upper half of the remainder's bits. XLA would optimise away rounding followed by widening."""
    left, found = log_mass, []
    for _ in range(terms_of(dtype) - 1):
        bits = lax.bitcast_convert_type(left, jnp.uint32) & jnp.uint32(_UPPER_HALF)
        found.append(lax.bitcast_convert_type(bits, jnp.float32))
        left = left - found[-1]
    return [*found, left]


def pack(
    mean: Float[Array, "*rows kv_lora"], log_mass: Float[Array, "*rows"], dtype: DTypeLike
) -> Float[Array, "*rows partial"]:
    """Pack rows in bfloat16 or float32. log_mass is float32, -inf without visible slots."""
    found = terms(jnp.maximum(log_mass, LOWEST), dtype)
    found += [jnp.zeros_like(log_mass)] * (MASS - len(found))
    columns = [mean, jnp.stack(found, axis=-1)]
    return jnp.concatenate([part.astype(dtype) for part in columns], axis=-1)


def unpack(
    partials: Float[Array, "*rows partial"], kv_lora: int
) -> tuple[Float[Array, "*rows kv_lora"], Float[Array, "*rows"]]:
    """Return means in the rows' dtype and float32 log2 masses; bfloat16 rows may be widened."""
    found = [partials[..., kv_lora + term] for term in range(terms_of(jnp.bfloat16))]
    return partials[..., :kv_lora], reduce(add, (term.astype(jnp.float32) for term in found))


def join_shares(
    partials: Float[Array, "groups batch q_len heads partial"],
) -> Float[Array, "batch q_len heads dim"]:
    """Join the partial attention of `groups` devices to the same heads. Means are weighted by their
    masses and added in float32 in the order of the groups; rows without a visible slot in any group
    are 0."""
    means, log_mass = unpack(partials, partials.shape[-1] - MASS)
    weights = jnp.exp2(log_mass - log_mass.max(axis=0))
    total = reduce(add, weights[..., None] * means.astype(jnp.float32))
    return (total / reduce(add, weights)[..., None]).astype(partials.dtype)


def in_one(
    queries: Float[Array, "groups batch q_len heads dim"],
) -> Float[Array, "batch q_len all_heads dim"]:
    """Concatenate the heads of all groups, in the order of the groups."""
    return jnp.concatenate(list(queries), axis=2)


def apart(
    rows: Float[Array, "batch q_len all_heads partial"], groups: int
) -> Float[Array, "groups batch q_len heads partial"]:
    """Split heads into groups again: the inverse of `in_one`."""
    return jnp.stack(jnp.split(rows, groups, axis=2))


def check_part(
    operation: str, q: Float[Array, "groups batch q_len heads dim"], paged: PagedKV
) -> None:
    """Raise ValueError if these queries cannot attend to a part of a context."""
    if q.dtype not in (jnp.bfloat16, jnp.float32):
        raise ValueError(f"{operation}: expected queries of bfloat16 or float32, got {q.dtype}")
    if paged.ancestors is not None:
        raise ValueError(f"{operation}: expected rows of a chain, got nodes of a tree")
    paged.check(operation, q[0])
