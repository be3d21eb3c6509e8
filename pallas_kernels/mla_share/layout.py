"""A row of a share: a mean of latents, and behind it the logarithm of the mass that it stands for.

One array for one collective. The mass is float32's: a bfloat16 has a third of its bits, so three of
them hold it exactly.
"""

from functools import reduce
from operator import add

import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from pallas_kernels.paged.kernel import LOWEST

MASS = 8
"""Numbers behind a row's mean: as many as let each row of bfloat16 begin at 16 bytes."""
_UPPER_HALF = 0xFFFF0000


def terms_of(dtype: DTypeLike) -> int:
    """Of those, how many the mass is the sum of; the others are 0."""
    return 3 if dtype == jnp.bfloat16 else 1


def terms(log_mass: Float[Array, "*rows"], dtype: DTypeLike) -> list[Float[Array, "*rows"]]:
    """Numbers of this dtype, still as float32, whose sum is log_mass; each the upper half of what
    is left: rounded and widened again, XLA would take it for what it was."""
    left, found = log_mass, []
    for _ in range(terms_of(dtype) - 1):
        bits = lax.bitcast_convert_type(left, jnp.uint32) & jnp.uint32(_UPPER_HALF)
        found.append(lax.bitcast_convert_type(bits, jnp.float32))
        left = left - found[-1]
    return [*found, left]


def pack(
    mean: Float[Array, "*rows kv_lora"], log_mass: Float[Array, "*rows"], dtype: DTypeLike
) -> Float[Array, "*rows share"]:
    """Rows of a share, in bfloat16 or float32; log_mass: float32, -inf where nothing was seen."""
    found = terms(jnp.maximum(log_mass, LOWEST), dtype)
    found += [jnp.zeros_like(log_mass)] * (MASS - len(found))
    columns = [mean, jnp.stack(found, axis=-1)]
    return jnp.concatenate([part.astype(dtype) for part in columns], axis=-1)


def unpack(
    shares: Float[Array, "*rows share"], kv_lora: int
) -> tuple[Float[Array, "*rows kv_lora"], Float[Array, "*rows"]]:
    """Means in the shares' dtype, and the float32 logarithms of their masses to the base 2; of
    bfloat16 rows that were widened too."""
    found = [shares[..., kv_lora + term] for term in range(terms_of(jnp.bfloat16))]
    return shares[..., :kv_lora], reduce(add, (term.astype(jnp.float32) for term in found))
