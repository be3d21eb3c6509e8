"""Collectives between devices that each run a program on its part of an array.

`axis` is the mesh axes over which an array is split; None means whole, without exchange. All
devices get the same bits, so that they make the same decisions.
"""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Shaped

Axis = tuple[str, ...] | str | None


def num_devices(axis: Axis) -> int:
    """Number of devices over which the array is split."""
    return 1 if axis is None else lax.axis_size(axis)


def first_column(columns: int, axis: Axis) -> Int[Array, ""] | int:
    """Index of this device's first column, for parts of `columns` columns."""
    return 0 if axis is None else lax.axis_index(axis) * jnp.int32(columns)


def all_sum(x: Shaped[Array, "*shape"], axis: Axis) -> Shaped[Array, "*shape"]:
    """Sum over devices, elementwise."""
    return x if axis is None else lax.psum(x, axis)


def all_max(x: Shaped[Array, "*shape"], axis: Axis) -> Shaped[Array, "*shape"]:
    """Maximum over devices, elementwise. Gathers instead of reducing, for small arrays."""
    return x if axis is None else lax.all_gather(x, axis).max(0)


def all_true(x: Bool[Array, "*shape"], axis: Axis) -> Bool[Array, "*shape"]:
    """Logical and over devices, elementwise. Gathers too."""
    return x if axis is None else lax.all_gather(x, axis).all(0)


def all_columns(
    x: Shaped[Array, "*rows columns"], axis: Axis
) -> Shaped[Array, "*rows all_columns"]:
    """Gather all devices' columns, in order."""
    return x if axis is None else lax.all_gather(x, axis, axis=x.ndim - 1, tiled=True)


def all_rows(x: Shaped[Array, "rows columns"], axis: Axis) -> Shaped[Array, "all_rows columns"]:
    """Gather all devices' rows, in order."""
    return x if axis is None else lax.all_gather(x, axis, tiled=True)


def own_rows_sum(x: Float[Array, "all_rows columns"], axis: Axis) -> Float[Array, "rows columns"]:
    """Return this device's rows of the sum, added in float32 in device order for equal bits."""
    assert axis is not None, "several devices have rows of their own"
    parts = x.reshape(num_devices(axis), -1, x.shape[-1])
    mine = lax.all_to_all(parts, axis, 0, 0, tiled=True)
    return mine.astype(jnp.float32).sum(0).astype(x.dtype)


def own_unit(units: int, axis: Axis) -> Int[Array, ""]:
    """Index of this device's unit, of fewer `units` than devices: neighbours share."""
    assert axis is not None, "several devices share one"
    return lax.axis_index(axis) * units // num_devices(axis)


def index_in_group(axis: Axis, size: int) -> Int[Array, ""]:
    """Index of this device among the `size` neighbours of its group."""
    assert axis is not None, "a group has several devices"
    return lax.axis_index(axis) % size


def group_gather(x: Shaped[Array, "*shape"], axis: Axis, size: int) -> Shaped[Array, "*grouped"]:
    """Gather the arrays of a group's devices in order, [size, *shape]."""
    assert axis is not None, "a group has several devices"
    return lax.all_gather(x, axis, axis_index_groups=_groups(axis, size))


def group_exchange(
    x: Shaped[Array, "*grouped"], axis: Axis, size: int
) -> Shaped[Array, "*grouped"]:
    """Send x[i] to the group's i-th device; result[i] comes from it."""
    assert axis is not None, "a group has several devices"
    groups = _groups(axis, size)
    return lax.all_to_all(x, axis, 0, 0, axis_index_groups=groups, tiled=True)


def _groups(axis: Axis, size: int) -> list[list[int]] | None:
    """Groups of `size` neighbours; None if all devices are one group."""
    devices = num_devices(axis)
    if size == devices:
        return None
    return [list(range(first, first + size)) for first in range(0, devices, size)]


def gather_pairs(
    scores: Float[Array, "*rows top"], ids: Int[Array, "*rows top"], axis: Axis
) -> tuple[Float[Array, "*rows all_top"], Int[Array, "*rows all_top"]]:
    """Gather (score, id) pairs of all devices in order, float32 and int32, in one all-gather."""
    if axis is None:
        return scores, ids
    bits = lax.bitcast_convert_type(scores.astype(jnp.float32), jnp.int32)
    pairs = jnp.stack([bits, ids.astype(jnp.int32)])
    bits, ids = all_columns(pairs, axis)
    return lax.bitcast_convert_type(bits, jnp.float32), ids
