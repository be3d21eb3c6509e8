"""Synthetic verification for benchmarks: drafts are accepted at given rates, right or wrong.

Each round costs as much as a real one, the accept length is the requested one, and the answer is
not the model's. Evaluations must not use it.
"""

from collections.abc import Sequence
from itertools import pairwise

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.collectives import Axis
from eagle3_jax.sampling.noise import Stream, uniform
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.verify import VerifyResult, commit_prefix, num_valid_drafts
from eagle3_jax.vocabulary import value_at


def verify_synthetic(
    logits: Float[Array, "batch width vocab"],
    draft_ids: Int[Array, "batch k"],
    rows: SlotRows,
    rates: Sequence[float],
    axis: Axis = None,
) -> VerifyResult:
    """Accept drafts as `accept_at_rates` does, except those that the request's options bar.

    `axis` splits the logits (eagle3_jax.vocabulary).
    """
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(logits.shape[1])
    chosen = sample(logits, positions, rows.options, axis=axis)
    drafted = value_at(logits[:, :-1], draft_ids, axis)
    return accept_at_rates(chosen, drafted > -jnp.inf, draft_ids, rows, rates)


def accept_at_rates(
    chosen: Int[Array, "batch width"],
    possible: Bool[Array, "batch k"],
    draft_ids: Int[Array, "batch k"],
    rows: SlotRows,
    rates: Sequence[float],
) -> VerifyResult:
    """Accept draft i after accepted ones if u(seed, position) < rates[i] / rates[i - 1].

    `rates[i]` is the probability that the first i + 1 drafts are all accepted. Only possible drafts
    are accepted. The target's own choice follows them.
    """
    k = draft_ids.shape[1]
    offsets = jnp.arange(chosen.shape[1])
    positions = rows.seq_lens[:, None] + 1 + offsets
    given_before = [b / a if a else 0.0 for a, b in pairwise((1.0, *rates[:k]))]
    u = uniform(Stream.ACCEPT.seed(rows.options.seed), positions[:, :-1])
    valid = offsets[:-1] < num_valid_drafts(rows)[:, None]
    accepted = valid & possible & (u < jnp.array(given_before, jnp.float32))
    return commit_prefix(accepted, draft_ids, chosen, rows)
