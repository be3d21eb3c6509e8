"""Draft trees whose shape is data, and the path that the target would have taken itself.

The target's choice at each node, made with the position's noise, selects the child with that token.
The output therefore depends on the target alone, whatever the tree.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.collectives import Axis
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.state import SlotRows
from eagle3_jax.speculative.verify import VerifyResult, num_valid_drafts, settle


class Tree(NamedTuple):
    """Nodes of each sequence's tree; node 0 is the root, the last known token.

    `tokens` are target ids. parents[i] < i, and 0 for the root itself. Both are int32.
    """

    tokens: Int[Array, "batch nodes"]
    parents: Int[Array, "batch nodes"]


class HostTree(NamedTuple):
    """A Tree of NumPy arrays with mutable tokens.

    Chains with lookup have `looked_up`, int32 [batch] (propose.Drafts).
    """

    tokens: np.ndarray
    parents: np.ndarray
    looked_up: np.ndarray | None = None


def chains_as_trees(draft_ids: np.ndarray) -> HostTree:
    """Convert chains [batch, k] to trees; their roots, which chains lack, are 0."""
    tokens = np.pad(draft_ids, ((0, 0), (1, 0)))
    parents = np.maximum(np.arange(tokens.shape[1], dtype=np.int32) - 1, 0)
    return HostTree(tokens, np.broadcast_to(parents, tokens.shape))


class Nodes(NamedTuple):
    """Ancestors, depth and path of each node of a tree.

    ancestors[b, i, j]: node j is node i or an ancestor of it. `depths` count steps from the root.
    `paths` are the tokens from below the root to each node, inclusive, padded with 0.
    """

    ancestors: Bool[Array, "batch nodes nodes"]
    depths: Int[Array, "batch nodes"]
    paths: Int[Array, "batch nodes levels"]


def place_nodes(tree: Tree, levels: int) -> Nodes:
    """Compute the nodes' places by following parents at most `levels` times."""
    ancestors = ancestors_of(tree.parents, levels)
    depths = ancestors.sum(axis=-1, dtype=jnp.int32) - 1
    on_path = ancestors[..., None] & (depths[:, None, :, None] == jnp.arange(1, levels + 1))
    paths = jnp.where(on_path, tree.tokens[:, None, :, None], 0).sum(axis=2)
    return Nodes(ancestors, depths, paths)


def ancestors_of(
    parents: Int[Array, "batch nodes"], levels: int
) -> Bool[Array, "batch nodes nodes"]:
    """Return the tree mask: each node sees itself and its parent's ancestors."""
    nodes = parents.shape[1]
    own = jnp.broadcast_to(jnp.eye(nodes, dtype=bool), (*parents.shape, nodes))
    found = own
    for _ in range(levels):
        found = own | jnp.take_along_axis(found, parents[..., None], axis=1)
    return found


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
