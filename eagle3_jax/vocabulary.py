"""Operations on a vocabulary whose columns are split over devices.

Every device has the same number of neighbouring columns, the lowest ids first.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from eagle3_jax.collectives import Axis, all_sum, first_column, gather_pairs


def column_ids(
    columns: int, token_ids: Int[Array, " vocab"] | None = None, axis: Axis = None
) -> Int[Array, " vocab"]:
    """Return the id of each local column: `token_ids` for a reduced vocabulary."""
    return first_column(columns, axis) + jnp.arange(columns) if token_ids is None else token_ids


def own_columns(
    table: Shaped[Array, "*rows all_ids"],
    columns: int,
    token_ids: Int[Array, " vocab"] | None = None,
    axis: Axis = None,
) -> Shaped[Array, "*rows vocab"]:
    """Return the local columns of a replicated table over all ids."""
    if token_ids is not None:
        return table[..., token_ids]
    if axis is None:
        return table[..., :columns]
    return lax.dynamic_slice_in_dim(table, first_column(columns, axis), columns, axis=-1)


def value_at(
    values: Float[Array, "*rows vocab"], token_ids: Int[Array, "*rows"], axis: Axis = None
) -> Float[Array, "*rows"]:
    """Return each row's value at its id, taking negative ids as 0; equal bits on all devices."""
    columns = values.shape[-1]
    here = jnp.maximum(token_ids, 0) - first_column(columns, axis)
    found = jnp.take_along_axis(values, here[..., None], axis=-1, mode="clip")[..., 0]
    if axis is None:
        return found
    return all_sum(jnp.where((here >= 0) & (here < columns), found, 0), axis)


def logsumexp(values: Float[Array, "*rows vocab"], axis: Axis = None) -> Float[Array, "*rows 1"]:
    """Return the logarithm of the sum of exp(values) over all columns."""
    part = jax.nn.logsumexp(values, axis=-1, keepdims=True)
    return part if axis is None else jax.nn.logsumexp(lax.all_gather(part, axis), axis=0)


def best_of_devices(
    scores: Float[Array, "*rows"], ids: Int[Array, "*rows"], axis: Axis = None
) -> Int[Array, "*rows"]:
    """Return the id of the largest score of all devices, the lowest among equals.

    If no score is above -inf, ids are codes and the largest code is returned.
    """
    if axis is None:
        return ids
    scores, ids = gather_pairs(scores[..., None], ids[..., None], axis)
    first = jnp.take_along_axis(ids, jnp.argmax(scores, axis=-1, keepdims=True), axis=-1)[..., 0]
    return jnp.where(scores.max(-1) > -jnp.inf, first, ids.max(-1))


def best_pairs(
    scores: Float[Array, "*rows top"], ids: Int[Array, "*rows top"], count: int, axis: Axis = None
) -> tuple[Float[Array, "*rows best"], Int[Array, "*rows best"]]:
    """Return up to `count` largest scores of all devices with ids, lowest id first among equals.

    Each device contributes `count` of its own, in this order.
    """
    if axis is None:
        return scores, ids
    scores, ids = gather_pairs(scores, ids, axis)
    best, indices = lax.top_k(scores, min(count, scores.shape[-1]))
    return best, jnp.take_along_axis(ids, indices, axis=-1)
