"""How far a draft's distribution is from the target's, as losses that training may choose."""

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Divergence = Callable[
    [Float[Array, "*rows draft_vocab"], Float[Array, "*rows draft_vocab"]], Float[Array, "*rows"]
]
"""Of the target's probabilities of the draft's ids, which sum to less than 1 where the draft lacks
some, and the draft's log-probabilities."""

TRUST = 3.0
"""How fast `lk` turns from the cross-entropy to acceptance as acceptance grows."""


def cross_entropy(probs: Array, log_q: Array) -> Array:
    """KL's gradient without the target's entropy."""
    return -jnp.sum(probs * log_q, axis=-1)


def acceptance(probs: Array, log_q: Array) -> Array:
    """The chance that a draft is kept where draft and target choose as independently as rejection
    sampling allows: 1 - total variation."""
    return jnp.sum(jnp.minimum(probs, jnp.exp(log_q)), axis=-1)


def total_variation(probs: Array, log_q: Array) -> Array:
    """Half the sum of differences, what the draft lacks included."""
    return 1 - acceptance(probs, log_q)


def likelihood_of_acceptance(probs: Array, log_q: Array) -> Array:
    """Cross-entropy where the row's acceptance is low, total variation where it is high (the hybrid
    of LK losses, arXiv 2602.23881): TV alone has hardly a gradient far from the target."""
    share = jnp.exp(-TRUST * jax.lax.stop_gradient(acceptance(probs, log_q)))
    return share * cross_entropy(probs, log_q) + (1 - share) * total_variation(probs, log_q)


DIVERGENCES: Mapping[str, Divergence] = {
    "kl": cross_entropy,
    "tv": total_variation,
    "lk": likelihood_of_acceptance,
}
