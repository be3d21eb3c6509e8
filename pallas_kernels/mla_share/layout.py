"""Row layout of partial attention: a mean of latents, then the logarithm of its mass.

Both are in one array, for one collective. The mass is a float32; a bfloat16 has a third of its
significant bits, so three of them hold it exactly.
"""

from functools import reduce
from operator import add

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.paged.kernel import LOWEST

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
) -> Float[Array, "*rows share"]:
    """Pack rows in bfloat16 or float32. log_mass is float32, -inf without visible slots."""
    found = terms(jnp.maximum(log_mass, LOWEST), dtype)
    found += [jnp.zeros_like(log_mass)] * (MASS - len(found))
    columns = [mean, jnp.stack(found, axis=-1)]
    return jnp.concatenate([part.astype(dtype) for part in columns], axis=-1)


def unpack(
    shares: Float[Array, "*rows share"], kv_lora: int
) -> tuple[Float[Array, "*rows kv_lora"], Float[Array, "*rows"]]:
    """Return means in the rows' dtype and float32 log2 masses; bfloat16 rows may be widened."""
    found = [shares[..., kv_lora + term] for term in range(terms_of(jnp.bfloat16))]
    return shares[..., :kv_lora], reduce(add, (term.astype(jnp.float32) for term in found))
