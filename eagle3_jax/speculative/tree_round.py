"""One round with a draft tree: a chain's round in which the accepted path's rows move.

The target's KV of node i is written i slots past the committed rows. The path's rows are copied to
where a chain would have written them, so the resulting state is the same. A batch with a grammar
runs the two halves as two programs, as chains do.
"""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from eagle3_jax.cache import KVPools, move_rows, view_nodes, view_pages
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.logprobs import Logprobs, sampled_logprobs
from eagle3_jax.sampling.sampler import nan_if_nonfinite
from eagle3_jax.sampling.token_mask import mask_logits
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_jax.speculative.method import TreeShape, Variant
from eagle3_jax.speculative.propose_tree import propose_tree
from eagle3_jax.speculative.round_state import RoundBatch, commit_batch, read_batch
from eagle3_jax.speculative.state import DecodeState
from eagle3_jax.speculative.tree import Tree, Walk, place_nodes, walk


def tree_round(
    target: Target,
    draft: Eagle3Draft | None,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    shape: TreeShape,
    *,
    variant: Variant = Variant.LEAN,
) -> tuple[DecodeState, Int[Array, "batch report"], Logprobs | None]:
    """Advance the sequences in `slot_ids` by one tree round, with as many levels as drafts.

    A draft is required. State, report and logprobs are those of `speculative_round`; each level
    counts as one verified draft.
    """
    assert draft is not None, "the runner refuses trees without a draft"
    batch = slot_ids, page_table
    state, tree = propose_tree_round(draft, state, *batch, shape=shape, variant=variant)
    return verify_tree_round(target, aux_layer_ids, state, *batch, tree, variant=variant)


def propose_tree_round(
    draft: Eagle3Draft,
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    masks: UInt32[Array, "batch 1 words"] | None = None,
    *,
    shape: TreeShape,
    variant: Variant = Variant.LEAN,
) -> tuple[DecodeState, Tree]:
    """Run the draft's half of a round: return new draft KV and the trees.

    `masks` apply to the roots' children; with masks paused rows resume, as for chains.
    """
    batch = read_batch(state, slot_ids, page_table, variant, resumes=masks is not None)
    with jax.named_scope("propose"):
        tree, draft_pools = propose_tree(draft, batch, state.draft_pools, shape, masks)
    return replace(state, draft_pools=draft_pools), tree


def verify_tree_round(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    state: DecodeState,
    slot_ids: Int[Array, " batch"],
    page_table: Int[Array, "batch pages_per_seq"],
    tree: Tree,
    masks: UInt32[Array, "batch nodes words"] | None = None,
    *,
    variant: Variant = Variant.LEAN,
) -> tuple[DecodeState, Int[Array, "batch report"], Logprobs | None]:
    """Run the target's half of a round: verify, walk, commit. Only full rounds have `masks`."""
    batch = read_batch(state, slot_ids, page_table, variant, resumes=masks is not None)
    with jax.named_scope("verify"):
        walked, aux_hidden, pools, logprobs = _target_nodes(
            target, aux_layer_ids, tree, batch, state.target_pools, masks
        )
    with jax.named_scope("commit"):
        pools = _move_path(pools, walked, batch)
        features = take_path(aux_hidden, walked.path)
    state, report = commit_batch(state, batch, walked.result, features, pools)
    return state, report, logprobs


def _target_nodes(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    tree: Tree,
    batch: RoundBatch,
    pools: KVPools,
    masks: UInt32[Array, "batch nodes words"] | None,
) -> tuple[Walk, Array, KVPools, Logprobs | None]:
    """Run all nodes through the target, each at the position of its depth, and decide."""
    rows, logit_controls, axis = batch.rows, batch.logit_controls, target.vocab_axis
    nodes = place_nodes(tree, rows.verified_tokens.shape[1] - 1)
    positions = rows.seq_lens[:, None] + nodes.depths
    pages = view_nodes(
        batch.page_table, rows.seq_lens, nodes.ancestors, batch.active, pools[0].shape[1]
    )
    hidden, aux_hidden, pools = target(tree.tokens, positions, aux_layer_ids, pools, pages)
    logits = nan_if_nonfinite(target.logits(hidden), axis)
    if logit_controls is None:
        return walk(logits, tree, nodes.depths, rows, axis), aux_hidden, pools, None
    options = rows.options, logit_controls, None, axis, nodes.depths
    controlled = control_logits(logits, positions + 1, nodes.paths, *options)
    if masks is not None:
        controlled = mask_logits(controlled, masks, axis=axis)
    walked = walk(controlled, tree, nodes.depths, rows, axis)
    with jax.named_scope("logprobs"):
        logprobs = sampled_logprobs(
            jnp.take_along_axis(logits, walked.path[..., None], axis=1),
            jnp.take_along_axis(controlled, walked.path[..., None], axis=1),
            jnp.take_along_axis(positions + 1, walked.path, axis=1),
            walked.result.token_ids,
            rows.options,
            logit_controls.processed_logprobs,
            axis,
        )
    return walked, aux_hidden, pools, Logprobs(logprobs)


def take_path(
    features: Float[Array, "batch nodes aux"], path: Int[Array, "batch width"]
) -> Float[Array, "batch width aux"]:
    """Return the features of the path's nodes."""
    return jnp.take_along_axis(features, path[..., None], axis=1)


def _move_path(pools: KVPools, walked: Walk, batch: RoundBatch) -> KVPools:
    """Copy the accepted nodes' KV rows to the slots of their positions."""
    depths = jnp.arange(1, walked.path.shape[1])
    start = batch.rows.seq_lens[:, None]
    moves = (depths <= walked.result.num_accepted[:, None]) & batch.active[:, None]
    page_size = pools[0].shape[1]
    origin = view_pages(batch.page_table, start + walked.path[:, 1:], moves, page_size)
    to = view_pages(batch.page_table, start + depths, moves, page_size)
    return tuple(move_rows(pool, origin, to) for pool in pools)
