"""Placement of image features at their positions in a prompt."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int


def aligned(
    token_ids: Int[np.ndarray, "batch seq"],
    features: Sequence[Float[Array | np.ndarray, "_ hidden"]],
    placeholder: int | None,
    hidden: int,
) -> Float[Array, "batch seq hidden"]:
    """Put features at the rows of [batch, seq, hidden] with the placeholder id, zeros elsewhere.

    Raises ValueError as `placeholders` does.
    """
    where = placeholders(token_ids, features, placeholder)
    empty = jnp.zeros((*token_ids.shape, hidden), jnp.float32)
    return empty.at[where].set(jnp.concatenate(features)) if where.any() else empty


def placeholders(
    token_ids: Int[np.ndarray, "batch seq"],
    features: Sequence[Float[Array | np.ndarray, "_ hidden"]],
    placeholder: int | None,
) -> Bool[np.ndarray, "batch seq"]:
    """Return the mask of positions for features, which fill it in order.

    Raises ValueError if the counts differ or the model has no placeholder.
    """
    if placeholder is None:
        raise ValueError(
            "this target has no media_placeholder_token_id: it takes no image_features"
        )
    where = token_ids == placeholder
    rows = sum(len(rows) for rows in features)
    if rows != where.sum():
        raise ValueError(
            f"{int(where.sum())} positions hold the placeholder {placeholder}, and the images have "
            f"{rows} features; each image needs num_tokens placeholders"
        )
    return where
