"""A tree of drafts whose shape is data: its parents, and what follows from them."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int


class Tree(NamedTuple):
    """Nodes of each sequence's tree; node 0 is the root, the last token known.

    tokens: int32, target ids. parents: int32, parents[i] < i, and 0 for the root itself.
    """

    tokens: Int[Array, "batch nodes"]
    parents: Int[Array, "batch nodes"]


class HostTree(NamedTuple):
    """A Tree of NumPy arrays, whose tokens may be changed."""

    tokens: np.ndarray
    parents: np.ndarray


def chains_as_trees(draft_ids: np.ndarray) -> HostTree:
    """The trees of chains [batch, k]; their root, which chains lack, is 0."""
    tokens = np.pad(draft_ids, ((0, 0), (1, 0)))
    parents = np.maximum(np.arange(tokens.shape[1], dtype=np.int32) - 1, 0)
    return HostTree(tokens, np.broadcast_to(parents, tokens.shape))


class Nodes(NamedTuple):
    """Where each node of a tree stands.

    ancestors [b, i, j]: node j is node i or an ancestor of it. depths: steps from the root.
    paths: the tokens from below the root to each node, itself included; 0 after them.
    """

    ancestors: Bool[Array, "batch nodes nodes"]
    depths: Int[Array, "batch nodes"]
    paths: Int[Array, "batch nodes levels"]


def place_nodes(tree: Tree, levels: int) -> Nodes:
    """Follows the parents up, at most `levels` times."""
    ancestors = ancestors_of(tree.parents, levels)
    depths = ancestors.sum(axis=-1, dtype=jnp.int32) - 1
    on_path = ancestors[..., None] & (depths[:, None, :, None] == jnp.arange(1, levels + 1))
    paths = jnp.where(on_path, tree.tokens[:, None, :, None], 0).sum(axis=2)
    return Nodes(ancestors, depths, paths)


def ancestors_of(
    parents: Int[Array, "batch nodes"], levels: int
) -> Bool[Array, "batch nodes nodes"]:
    """The tree's mask: own rows, and those of the parents' ancestors."""
    nodes = parents.shape[1]
    own = jnp.broadcast_to(jnp.eye(nodes, dtype=bool), (*parents.shape, nodes))
    found = own
    for _ in range(levels):
        found = own | jnp.take_along_axis(found, parents[..., None], axis=1)
    return found
