"""Which slots of a paged context a query row sees."""

from collections.abc import Callable

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


def slots_in_use(
    positions: Int[Array, "batch rows"], ancestors: Bool[Array, "batch rows nodes"] | None
) -> Callable[[Int[Array, " slots"]], Bool[Array, "batch slots"]]:
    """Of given slots, those that some row of a sequence sees: the others may hold NaN."""
    if ancestors is not None:
        return lambda slots: visible_slots(slots, positions, ancestors).any(axis=1)
    last = positions.max(1, keepdims=True)
    return lambda slots: slots <= last


def check_ancestors(
    operation: str,
    ancestors: Bool[Array, "mask_batch mask_len nodes"] | None,
    positions: Int[Array, "batch rows"],
) -> None:
    """Raises ValueError unless there is one row of ancestors for each query."""
    if ancestors is not None and ancestors.shape[:2] != positions.shape:
        raise ValueError(
            f"{operation}: queries are {positions.shape} (batch, q_len), "
            f"ancestors {ancestors.shape}; expected (batch, q_len, nodes)"
        )
