"""Noise as a function of (seed, position, id): one integer hash, the same bits on every backend."""

from enum import Enum

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32


class Stream(Enum):
    """Noise besides the request's own, which draws what the target says: a seed of its own each.

    The salts are random 64-bit words: seeds that people choose don't collide with salted ones.
    """

    DRAFT = (0x5C8D1E37, 0xA91B64F3)
    ACCEPT = (0xE2461F95, 0x3D70CA8B)
    RESIDUAL = (0x917BD20E, 0x68F53AC7)

    def seed(self, seed: UInt32[Array, "... 2"]) -> UInt32[Array, "... 2"]:
        """The stream's seed for each request's seed."""
        return seed ^ jnp.array(self.value, jnp.uint32)


def uniform(
    seed: UInt32[Array, "batch 2"], positions: Int[Array, "batch rows"]
) -> Float[Array, "batch rows"]:
    """One number in [0, 1) for each (seed, position): a multiple of 2^-24, never 1."""
    bits = _hash(seed[:, None, 0], seed[:, None, 1], positions, jnp.zeros(1, jnp.int32))[..., 0]
    return (bits >> 8).astype(jnp.float32) * 2.0**-24


def gumbel(
    seed: UInt32[Array, "... 2"], positions: Int[Array, "*rows"], token_ids: Int[Array, " vocab"]
) -> Float[Array, "*rows vocab"]:
    """Standard Gumbel noise of each (seed, position, id); seed's leading axes broadcast over rows.

    A uniform u in (0, 1) is the hash's 32 bits; the noise is -log(-log(1 - u)), whose large values
    come from u near 0, where float32 is finest.
    """
    bits = _hash(seed[..., 0], seed[..., 1], positions, token_ids)
    uniform = (bits.astype(jnp.float32) + 0.5) * 2.0**-32
    exponential = -jnp.log1p(-jnp.minimum(uniform, 1 - 2.0**-24))
    return -jnp.log(exponential)


def _hash(
    low: UInt32[Array, "..."],
    high: UInt32[Array, "..."],
    positions: Int[Array, "*rows"],
    token_ids: Int[Array, " vocab"],
) -> UInt32[Array, "*rows vocab"]:
    """32 bits of (seed, position, id): two keys a row, then two rounds of mixing an id.

    Two keys, because with one, rows would share their noise at shifted ids.
    """
    position, ids = positions.astype(jnp.uint32), token_ids.astype(jnp.uint32)
    keys = []
    for salt in (0x9E3779B9, 0x85EBCA6B):
        keys.append(_mix(_mix(_mix(low ^ jnp.uint32(salt)) + high) + position)[..., None])
    return _mix(_mix(ids * jnp.uint32(0x9E3779B1) + keys[0]) ^ keys[1])


def _mix(bits: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """A bijection of 32-bit words: xor-shifts and odd multipliers (C. Wellons, lowbias32)."""
    bits = (bits ^ (bits >> 16)) * jnp.uint32(0x7FEB352D)
    bits = (bits ^ (bits >> 15)) * jnp.uint32(0x846CA68B)
    return bits ^ (bits >> 16)
