"""Visibility of the slots of a paged context to query rows."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def visible_slots(
    slots: Int[Array, " slots"],
    positions: Int[Array, "sequences rows"],
    ancestors: Bool[Array, "sequences rows nodes"] | None,
) -> Bool[Array, "sequences rows slots"]:
    """Return the visible slots: those up to a row's position, and the row's ancestors among the
    tree nodes in the slots after it."""
    known = slots <= positions[..., None]
    if ancestors is None:
        return known
    nodes = ancestors.shape[-1]
    node = slots - positions[..., None] - 1
    seen = jnp.take_along_axis(ancestors, jnp.clip(node, 0, nodes - 1), axis=-1)
    return known | (seen & (node >= 0) & (node < nodes))
