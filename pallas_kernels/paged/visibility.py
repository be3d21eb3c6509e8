"""Which slots of a paged context a query row sees."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


def visible_slots(
    slots: Int[Array, " slots"],
    positions: Int[Array, "sequences rows"],
    ancestors: Bool[Array, "sequences rows nodes"] | None,
) -> Bool[Array, "sequences rows slots"]:
    """Slots up to a row's position, and of the nodes in the slots after it the row's ancestors."""
    known = slots <= positions[..., None]
    if ancestors is None:
        return known
    nodes = ancestors.shape[-1]
    node = slots - positions[..., None] - 1
    seen = jnp.take_along_axis(ancestors, jnp.clip(node, 0, nodes - 1), axis=-1)
    return known | (seen & (node >= 0) & (node < nodes))
