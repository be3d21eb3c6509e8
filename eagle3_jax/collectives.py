"""What the devices of one mesh axis tell each other inside `jax.shard_map`.

Every function takes the axis that an array is split over; with None the array is whole and stays as
it is. All devices get the same bits, so that whatever is decided from them is decided alike.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

Axis = str | None


def first_index(size: int, axis: Axis) -> Int[Array, ""] | int:
    """Where this device's part of `size` neighbours begins in the whole."""
    return 0 if axis is None else lax.axis_index(axis) * size


def all_sum(x: Array, axis: Axis) -> Array:
    """The sum of the devices' arrays, element by element."""
    return x if axis is None else lax.psum(x, axis)


def all_max(x: Array, axis: Axis) -> Array:
    """The largest of each element, NaN where one is NaN.

    Gathered, not reduced: it is for small arrays, and GPU libraries' reductions may drop NaN.
    """
    return x if axis is None else lax.all_gather(x, axis).max(0)


def all_true(x: Array, axis: Axis) -> Array:
    """Where no device's element is false."""
    return x if axis is None else lax.all_gather(x, axis).all(0)


def gather_pairs(
    scores: Float[Array, "*rows top"], ids: Int[Array, "*rows top"], axis: Axis
) -> tuple[Float[Array, "*rows all_top"], Int[Array, "*rows all_top"]]:
    """The (score, id) pairs of all devices in their order, float32 and int32: one all-gather."""
    if axis is None:
        return scores, ids
    bits = lax.bitcast_convert_type(scores.astype(jnp.float32), jnp.int32)
    pairs = jnp.stack([bits, ids.astype(jnp.int32)])
    bits, ids = lax.all_gather(pairs, axis, axis=pairs.ndim - 1, tiled=True)
    return lax.bitcast_convert_type(bits, jnp.float32), ids
