"""What decides between logits, row by row, and what comes out where nothing can be chosen."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

NOT_FINITE = -1
"""In place of an id: the logits hold NaN or infinity."""
NO_CANDIDATE = -2
"""In place of an id: the bias bars all of them."""
LAST_ID = 2**31 - 1
AxisName = str | tuple[str, ...] | None
"""The mesh axes that a vocabulary is split over; None where it is whole."""


class ArgmaxOptions(NamedTuple):
    """One entry a row; all of it is data.

    temperature 0 is greedy. seed (low and high word) and position of the token that is chosen fix
    its noise. min_p keeps ids whose probability is at least that share of the best one's, 0 keeps
    all, None saves the pass that looks. bias [n] is added to the logits of bias_ids [n]; -inf bars,
    an id that no column has does nothing; padding (below 0) is best put last.
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
    """The best score of each row and its id, the lowest of equals. NaN anywhere is NOT_FINITE."""
    broken = jnp.max(jnp.where(scores == scores, 0, 1), axis=1) > 0
    best = jnp.max(jnp.where(scores == scores, scores, -jnp.inf), axis=1)
    lowest = jnp.min(jnp.where(scores == best[:, None], ids, LAST_ID), axis=1)
    chosen = jnp.where(best > -jnp.inf, lowest, NO_CANDIDATE)
    return jnp.where(broken, jnp.nan, best), jnp.where(broken, NOT_FINITE, chosen)
