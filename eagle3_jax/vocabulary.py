"""A vocabulary whose columns are split over devices: which of them are here, and what one holds.

Device i has as many neighbouring columns as every other, those of the lowest ids first.
"""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Shaped

from eagle3_jax.collectives import Axis, all_sum, first_column, gather_pairs


def column_ids(
    columns: int, token_ids: Int[Array, " vocab"] | None = None, axis: Axis = None
) -> Int[Array, " vocab"]:
    """The id of each column here: token_ids where a reduced vocabulary has such."""
    return first_column(columns, axis) + jnp.arange(columns) if token_ids is None else token_ids


def own_columns(
    table: Shaped[Array, "*rows all_ids"],
    columns: int,
    token_ids: Int[Array, " vocab"] | None = None,
    axis: Axis = None,
) -> Shaped[Array, "*rows vocab"]:
    """The columns here of a table over all ids, which every device has whole."""
    if token_ids is not None:
        return table[..., token_ids]
    if axis is None:
        return table[..., :columns]
    return lax.dynamic_slice_in_dim(table, first_column(columns, axis), columns, axis=-1)


def value_at(
    values: Float[Array, "*rows vocab"], token_ids: Int[Array, "*rows"], axis: Axis = None
) -> Float[Array, "*rows"]:
    """Each row's value at this id, the first for one below 0; its device's bits on all of them."""
    columns = values.shape[-1]
    here = jnp.maximum(token_ids, 0) - first_column(columns, axis)
    found = jnp.take_along_axis(values, here[..., None], axis=-1, mode="clip")[..., 0]
    if axis is None:
        return found
    return all_sum(jnp.where((here >= 0) & (here < columns), found, 0), axis)


def logsumexp(values: Float[Array, "*rows vocab"], axis: Axis = None) -> Float[Array, "*rows 1"]:
    """The logarithm of the sum of exp(values) over all columns."""
    part = jax.nn.logsumexp(values, axis=-1, keepdims=True)
    return part if axis is None else jax.nn.logsumexp(lax.all_gather(part, axis), axis=0)


def best_of_devices(
    scores: Float[Array, "*rows"], ids: Int[Array, "*rows"], axis: Axis = None
) -> Int[Array, "*rows"]:
    """The id of the largest of all devices' scores, the lowest of equals.

    Where none is above -inf the ids are codes, and it is the largest of them.
    """
    if axis is None:
        return ids
    scores, ids = gather_pairs(scores[..., None], ids[..., None], axis)
    first = jnp.take_along_axis(ids, jnp.argmax(scores, axis=-1, keepdims=True), axis=-1)[..., 0]
    return jnp.where(scores.max(-1) > -jnp.inf, first, ids.max(-1))


def best_pairs(
    scores: Float[Array, "*rows top"], ids: Int[Array, "*rows top"], count: int, axis: Axis = None
) -> tuple[Float[Array, "*rows best"], Int[Array, "*rows best"]]:
    """The `count` largest of all devices' scores, and their ids, the lowest first of equals.

    Each device gives that many of its own, in this order. All, where there are no more.
    """
    if axis is None:
        return scores, ids
    scores, ids = gather_pairs(scores, ids, axis)
    best, indices = lax.top_k(scores, min(count, scores.shape[-1]))
    return best, jnp.take_along_axis(ids, indices, axis=-1)
