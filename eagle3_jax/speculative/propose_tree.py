"""Proposal of draft trees: expand the best topk nodes per level, then keep the best of all.

A child's score is its log-probability under softmax(processed log-probabilities + the target's
noise), summed along its path. At temperature 0 there is no noise, and this is the rule of EAGLE-2
(arXiv 2406.16858) and SGLang. Above, it is the probability that the target picks the child if its
log-probabilities are the draft's plus independent Gumbel errors. The draft predicts the target's
choice under noise that both know, not a sample from a distribution.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt32

from eagle3_jax.cache import KVPools, view_nodes
from eagle3_jax.collectives import Axis, all_max, all_sum
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.sampling.rows import SamplingRows, filters_off
from eagle3_jax.sampling.sampler import gumbel, process_logits
from eagle3_jax.sampling.token_mask import mask_logits
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_jax.speculative.method import TreeShape
from eagle3_jax.speculative.propose import first_pass
from eagle3_jax.speculative.round_state import RoundBatch
from eagle3_jax.speculative.tree import Tree
from eagle3_jax.vocabulary import best_pairs, column_ids


class Frontier(NamedTuple):
    """Nodes of one depth that are expanded together.

    `scores` are those of their paths. `numbers` count candidates from 1; 0 is the root. `paths` are
    the tokens from below the root to each node, inclusive, `hidden` the draft's states. `ancestors`
    masks the rows that the draft has run for this tree, including their own.
    """

    scores: Float[Array, "batch nodes"]
    numbers: Int[Array, "batch nodes"]
    paths: Int[Array, "batch nodes depth"]
    hidden: Float[Array, "batch nodes hidden"]
    ancestors: Bool[Array, "batch nodes rows"]


class Candidates(NamedTuple):
    """Nodes that may be kept, in level order; parents are candidate numbers."""

    scores: Float[Array, "batch count"]
    tokens: Int[Array, "batch count"]
    parents: Int[Array, "batch count"]


def propose_tree(
    draft: Eagle3Draft,
    batch: RoundBatch,
    pools: KVPools,
    shape: TreeShape,
    masks: UInt32[Array, "batch 1 words"] | None = None,
) -> tuple[Tree, KVPools]:
    """Return a tree of `shape.num_draft_tokens` nodes and the draft's pools.

    The tree has as many levels as a chain has drafts. Each draft step runs the topk nodes of a
    level in slots of their own, under the tree mask. `masks` apply to the root's children.
    """
    rows, page_table, active = batch.rows, batch.page_table, batch.active
    hidden, pools = first_pass(draft, batch, pools)
    frontier, first_number = _root(hidden), 1
    found = _expand(draft, batch, frontier, shape.topk, masks)
    candidates = [found]
    for step in range(1, rows.verified_tokens.shape[1] - 1):
        with jax.named_scope(f"draft_step_{step}"):
            frontier = _best_children(frontier, found, first_number, shape.topk)
            first_number += found.scores.shape[1]
            pages = view_nodes(
                page_table, rows.seq_lens, frontier.ancestors, active, pools[0].shape[1]
            )
            positions = rows.seq_lens[:, None] + jnp.full((shape.topk,), step - 1)
            hidden, pools = draft(frontier.paths[..., -1], frontier.hidden, positions, pools, pages)
            frontier = frontier._replace(hidden=hidden)
            found = _expand(draft, batch, frontier, shape.topk)
            candidates.append(found)
    levels = zip(*candidates, strict=True)
    everything = Candidates(*(jnp.concatenate(part, axis=1) for part in levels))
    root = rows.last_tokens
    return _keep_best(everything, root, shape.num_draft_tokens - 1), pools


def _root(hidden: Float[Array, "batch 1 hidden"]) -> Frontier:
    batch = hidden.shape[0]
    zero = jnp.zeros((batch, 1), jnp.int32)
    return Frontier(
        scores=zero.astype(jnp.float32),
        numbers=zero,
        paths=jnp.zeros((batch, 1, 0), jnp.int32),
        hidden=hidden,
        ancestors=jnp.zeros((batch, 1, 0), bool),
    )


def _expand(
    draft: Eagle3Draft,
    batch: RoundBatch,
    frontier: Frontier,
    topk: int,
    masks: UInt32[Array, "batch nodes words"] | None = None,
) -> Candidates:
    rows, depth = batch.rows, frontier.paths.shape[-1]
    ids, axis = draft.target_ids, draft.vocab_axis
    positions = jnp.broadcast_to(rows.seq_lens[:, None] + 1 + depth, frontier.numbers.shape)
    logits = draft.logits(frontier.hidden)
    if batch.logit_controls is not None:
        num_before = jnp.full((1, logits.shape[1]), depth)
        controls = rows.options, batch.logit_controls, ids, axis
        logits = control_logits(logits, positions, frontier.paths, *controls, num_before)
    logits = mask_logits(logits, masks, ids, axis)
    log_probs = child_log_probs(logits, positions, rows.options, ids, axis)
    log_probs, columns = lax.top_k(log_probs, min(topk, logits.shape[-1]))
    tokens = column_ids(logits.shape[-1], ids, axis)[columns]
    log_probs, tokens = best_pairs(log_probs, tokens, topk, axis)
    parents = jnp.broadcast_to(frontier.numbers[..., None], tokens.shape)
    children = frontier.scores[..., None] + log_probs, tokens, parents
    return Candidates(*(part.reshape(part.shape[0], -1) for part in children))


def _best_children(frontier: Frontier, found: Candidates, first_number: int, topk: int) -> Frontier:
    """Return the topk best children as the next frontier.

    Children are numbered from `first_number`. Their `hidden` is still that of their parents.
    """
    scores, best = lax.top_k(found.scores, topk)
    parents = (best // topk)[..., None]
    tokens = jnp.take_along_axis(found.tokens, best, axis=1)[..., None]
    own = jnp.broadcast_to(jnp.eye(topk, dtype=bool), (*best.shape, topk))
    paths, hidden, ancestors = (
        jnp.take_along_axis(part, parents, axis=1)
        for part in (frontier.paths, frontier.hidden, frontier.ancestors)
    )
    return Frontier(
        scores=scores,
        numbers=first_number + best,
        paths=jnp.concatenate([paths, tokens], axis=-1),
        hidden=hidden,
        ancestors=jnp.concatenate([ancestors, own], axis=-1),
    )


def child_log_probs(
    logits: Float[Array, "batch nodes vocab"],
    positions: Int[Array, "batch nodes"],
    options: SamplingRows,
    token_ids: Int[Array, " vocab"] | None = None,
    axis: Axis = None,
) -> Float[Array, "batch nodes vocab"]:
    """Log-probability, at most 0 and never NaN, that the target picks each child of each node.

    The cuts apply to sampled requests only, because they do not change a greedy choice.
    """
    ids = column_ids(logits.shape[-1], token_ids, axis)
    sampled = options.temperature > 0
    options = filters_off(options, ~sampled)
    scores = process_logits(logits, positions, options, token_ids, axis)
    noise = gumbel(options.seed[:, None], positions, ids)
    noisy = jnp.where(sampled[:, None, None], scores + noise, scores)
    shifted = noisy - all_max(noisy.max(-1, keepdims=True), axis)
    log_probs = shifted - jnp.log(all_sum(jnp.exp(shifted).sum(-1, keepdims=True), axis))
    return jnp.where(jnp.isnan(log_probs), -jnp.inf, log_probs)


def _keep_best(found: Candidates, root: Int[Array, "batch 1"], count: int) -> Tree:
    """Build the tree of the `count` best candidates in order, the earlier of equals.

    No child scores above its parent or comes before it, so a kept child's parents are kept too.
    """
    _, best = lax.top_k(found.scores, count)
    kept = jnp.sort(best, axis=1)
    is_kept = jnp.zeros(found.scores.shape, jnp.int32)
    is_kept = jnp.put_along_axis(is_kept, kept, 1, axis=1, inplace=False)
    node_of = jnp.pad(jnp.cumsum(is_kept, axis=1), ((0, 0), (1, 0)))
    parents = jnp.take_along_axis(found.parents, kept, axis=1)
    return Tree(
        tokens=jnp.concatenate([root, jnp.take_along_axis(found.tokens, kept, axis=1)], axis=1),
        parents=jnp.pad(jnp.take_along_axis(node_of, parents, axis=1), ((0, 0), (1, 0))),
    )
