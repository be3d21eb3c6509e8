"""The target's half of a round with a draft tree.

The target's KV of node i is written i slots past the committed rows. The rows of the accepted path
are copied to where a chain would have written them, so the resulting state is the same.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from eagle3_jax.cache import KVPools, move_rows, view_nodes, view_pages
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.logprobs import Logprobs, sampled_logprobs
from eagle3_jax.sampling.sampler import nan_if_nonfinite
from eagle3_jax.sampling.token_mask import mask_logits
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_jax.speculative.round_state import RoundBatch
from eagle3_jax.speculative.tree import Tree, Walk, place_nodes, walk
from eagle3_jax.speculative.verify import VerifyResult


def verify_tree(
    target: Target,
    aux_layer_ids: tuple[int, ...],
    pools: KVPools,
    batch: RoundBatch,
    tree: Tree,
    masks: UInt32[Array, "batch nodes words"] | None,
) -> tuple[VerifyResult, Float[Array, "batch width aux"], KVPools, Logprobs | None]:
    """Run all nodes through the target, walk, and move the accepted path to a chain's places."""
    with jax.named_scope("verify"):
        walked, aux_hidden, pools, logprobs = _target_nodes(
            target, aux_layer_ids, tree, batch, pools, masks
        )
    with jax.named_scope("commit"):
        pools = _move_path(pools, walked, batch)
        features = take_path(aux_hidden, walked.path)
    return walked.result, features, pools, logprobs


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
