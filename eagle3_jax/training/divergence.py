"""Divergences between the distributions of draft and target, for use as training losses."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Divergence = Callable[
    [Float[Array, "*rows draft_vocab"], Float[Array, "*rows draft_vocab"]], Float[Array, "*rows"]
]
"""Function of the target's probabilities of the draft's ids (their sum is below 1 if the draft
lacks ids) and the draft's log-probabilities."""

TRUST = 3.0
"""Rate at which `lk` moves from cross-entropy to total variation as acceptance grows."""


def cross_entropy(probs: Array, log_q: Array) -> Array:
    """Cross-entropy, whose gradient is that of the KL divergence."""
    return -jnp.sum(probs * log_q, axis=-1)


def acceptance(probs: Array, log_q: Array) -> Array:
    """Acceptance probability under rejection sampling: 1 - total variation."""
    return jnp.sum(jnp.minimum(probs, jnp.exp(log_q)), axis=-1)


def total_variation(probs: Array, log_q: Array) -> Array:
    """Half the sum of absolute differences, including the ids that the draft lacks."""
    return 1 - acceptance(probs, log_q)


def likelihood_of_acceptance(probs: Array, log_q: Array) -> Array:
    """Mix cross-entropy at low acceptance with total variation at high acceptance.

    This is the hybrid LK loss (arXiv 2602.23881). Far from the target TV has almost no gradient.
    """
    share = jnp.exp(-TRUST * jax.lax.stop_gradient(acceptance(probs, log_q)))
    return share * cross_entropy(probs, log_q) + (1 - share) * total_variation(probs, log_q)


DIVERGENCES: Mapping[str, Divergence] = {
    "kl": cross_entropy,
    "tv": total_variation,
    "lk": likelihood_of_acceptance,
}
