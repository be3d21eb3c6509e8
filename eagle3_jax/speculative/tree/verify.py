"""Verification of a tree: the path that the target would have taken itself.

The target's choice at each node, made with the position's noise, selects the child with that token.
The output therefore depends on the target alone, whatever the tree.
"""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import Axis
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.tree.nodes import Tree
from eagle3_jax.speculative.verify import VerifyResult, num_valid_drafts, settle


class Walk(NamedTuple):
    """A chain's verify result, and the nodes of its rows along the accepted path, root first.

    Past the accepted ones `path` repeats the last node.
    """

    result: VerifyResult
    path: Int[Array, "batch width"]


def walk(
    logits: Float[Array, "batch nodes vocab"],
    tree: Tree,
    depths: Int[Array, "batch nodes"],
    rows: SlotRows,
    axis: Axis = None,
) -> Walk:
    """Sample every node from the target and follow its choices from the root.

    The logits of node i decide position n + 1 + depths[i]. A path ends if no child has the chosen
    token, at the depth of the last valid draft, and before a token at which the row pauses. `axis`
    splits the logits (eagle3_jax.vocabulary).
    """
    chosen = sample(logits, rows.seq_lens[:, None] + 1 + depths, rows.options, axis=axis)
    node = jnp.zeros((depths.shape[0], 1), jnp.int32)
    num_accepted, path, goes_on = jnp.zeros(depths.shape[0], jnp.int32), [node], True
    valid = num_valid_drafts(rows)
    for depth in range(1, rows.verified_tokens.shape[1]):
        wanted = jnp.take_along_axis(chosen, node, axis=1)
        child = (tree.parents == node) & (tree.tokens == wanted) & (depths > 0)
        goes_on = goes_on & child.any(axis=1) & (depth <= valid) & (wanted[:, 0] != rows.pause_id)
        node = jnp.where(goes_on[:, None], child.argmax(axis=1, keepdims=True), node)
        num_accepted += goes_on
        path.append(node)
    steps = jnp.concatenate(path, axis=1).astype(jnp.int32)
    token_ids = jnp.take_along_axis(chosen, steps, axis=1)
    return Walk(settle(token_ids, num_accepted, rows), steps)
