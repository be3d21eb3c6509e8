"""Per-row options for the choice of a token, and ids that stand for a failed choice."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

NOT_FINITE = -1
"""Returned instead of an id if the logits hold NaN or infinity."""
NO_CANDIDATE = -2
"""Returned instead of an id if the bias bars all ids."""
LAST_ID = 2**31 - 1
AxisName = str | tuple[str, ...] | None
"""Mesh axes that the vocabulary is split over; None if it is whole."""


class ArgmaxOptions(NamedTuple):
    """Options for choosing a token, one entry for each row; all of them are data.

    temperature: 0 is greedy. seed (low and high word) and positions (of the chosen token) fix the
    noise. min_p: keep ids with at least this fraction of the best id's probability; 0 keeps all,
    None saves the pass. bias [n] is added to the logits of bias_ids [n]: -inf bars an id, ids
    without a column have no effect, padding (below 0) should come last.
    """

    temperature: Float[Array, " rows"]
    seed: UInt32[Array, "rows 2"]
    positions: Int[Array, " rows"]
    min_p: Float[Array, " rows"] | None = None
    bias_ids: Int[Array, "rows biases"] | None = None
    bias: Float[Array, "rows biases"] | None = None


def best_of(
    scores: Float[Array, "rows parts"], ids: Int[Array, "rows parts"]
) -> tuple[Float[Array, " rows"], Int[Array, " rows"]]:
    """Return each row's best score and its id, the lowest of equals. Any NaN gives NOT_FINITE."""
    broken = jnp.max(jnp.where(scores == scores, 0, 1), axis=1) > 0
    best = jnp.max(jnp.where(scores == scores, scores, -jnp.inf), axis=1)
    lowest = jnp.min(jnp.where(scores == best[:, None], ids, LAST_ID), axis=1)
    chosen = jnp.where(best > -jnp.inf, lowest, NO_CANDIDATE)
    return jnp.where(broken, jnp.nan, best), jnp.where(broken, NOT_FINITE, chosen)
