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


def terms_of(dtype: DTypeLike) -> int:
    """Of those, how many the mass is the sum of; the others are 0."""
    return 3 if dtype == jnp.bfloat16 else 1


def pack(
    mean: Float[Array, "*rows kv_lora"], log_mass: Float[Array, "*rows"], dtype: DTypeLike
) -> Float[Array, "*rows share"]:
    """Rows of a share, in bfloat16 or float32; log_mass: float32, -inf where nothing was seen."""
    rest, terms = jnp.maximum(log_mass, LOWEST), []
    for _ in range(terms_of(dtype) - 1):
        # Rounded by a conversion to bfloat16 and back, XLA would leave it as it is.
        terms.append(lax.reduce_precision(rest, exponent_bits=8, mantissa_bits=7))
        rest = rest - terms[-1]
    terms += [rest] + [jnp.zeros_like(rest)] * (MASS - len(terms) - 1)
    columns = [mean, jnp.stack(terms, axis=-1)]
    return jnp.concatenate([part.astype(dtype) for part in columns], axis=-1)


def unpack(
    shares: Float[Array, "*rows share"], kv_lora: int
) -> tuple[Float[Array, "*rows kv_lora"], Float[Array, "*rows"]]:
    """Means in the shares' dtype, and the float32 logarithms of their masses to the base 2."""
    terms = [shares[..., kv_lora + term] for term in range(terms_of(shares.dtype))]
    return shares[..., :kv_lora], reduce(add, (term.astype(jnp.float32) for term in terms))
