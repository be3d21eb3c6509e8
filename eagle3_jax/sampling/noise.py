"""Noise as a function of (seed, position, id): the hash of `pallas_kernels.noise`, and streams."""

from enum import Enum

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from pallas_kernels import noise


class Stream(Enum):
    """Noise streams with seeds of their own, besides the noise for the target's choices.

    The salts are random 64-bit words, so seeds that users choose do not collide with salted ones.
    """

    DRAFT = (0x5C8D1E37, 0xA91B64F3)
    ACCEPT = (0xE2461F95, 0x3D70CA8B)
    RESIDUAL = (0x917BD20E, 0x68F53AC7)

    def seed(
        self, seed: UInt32[Array, "batch 2"], starts: Int[Array, " batch"] | None = None
    ) -> UInt32[Array, "batch 2"]:
        """Return the stream's seed for each request's seed.

        With `starts`, the lengths at which rounds begin, no two rounds of a request share noise.
        """
        salted = seed ^ jnp.array(self.value, jnp.uint32)
        return salted if starts is None else salted.at[:, 1].add(starts.astype(jnp.uint32))


def uniform(
    seed: UInt32[Array, "batch 2"], positions: Int[Array, "batch_or_1 rows"]
) -> Float[Array, "batch rows"]:
    """Return one number in [0, 1) per (seed, position), a multiple of 2^-24."""
    ids = jnp.zeros(1, jnp.int32)
    bits = noise.hash_bits(seed[:, None, 0], seed[:, None, 1], positions, ids)[..., 0]
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def gumbel(
    seed: UInt32[Array, "... 2"], positions: Int[Array, "*rows"], token_ids: Int[Array, " vocab"]
) -> Float[Array, "*rows vocab"]:
    """Return standard Gumbel noise per (seed, position, id); seed axes broadcast over rows."""
    return noise.gumbel(seed[..., 0], seed[..., 1], positions, token_ids)
