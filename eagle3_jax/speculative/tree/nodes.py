"""Draft trees whose shape is data: parents, ancestors, depths and paths."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


class Tree(NamedTuple):
    """Nodes of each sequence's tree; node 0 is the root, the last known token.

    `tokens` are target ids. parents[i] < i, and 0 for the root itself. Both are int32.
    """

    tokens: Int[Array, "batch nodes"]
    parents: Int[Array, "batch nodes"]


class HostTree(NamedTuple):
    """A Tree of NumPy arrays with mutable tokens."""

    tokens: np.ndarray
    parents: np.ndarray


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
