"""Masks after the drafts of a tree: a matcher follows each of its paths."""

from collections.abc import Iterator, Sequence

import numpy as np

from eagle3_jax.engine.grammars.interface import Matcher
from eagle3_jax.sampling.token_mask import ALL_ALLOWED


def fill_nodes(
    matcher: Matcher, masks: np.ndarray, draft_ids: Sequence[int], parents: Sequence[int]
) -> list[int]:
    """Fill masks like `Matcher.fill` for a tree, in which draft i follows node parents[i].

    Node 0 is the last known token, node i + 1 is draft i. Paths agree on their common prefix.
    """
    drafts = list(draft_ids)
    for path in paths_of(parents):
        rows = masks[[0, *path]]
        rows[:] = ALL_ALLOWED
        ids = matcher.fill(rows, [drafts[node - 1] for node in path])
        masks[[0, *path]] = rows
        for node, token in zip(path, ids, strict=True):
            drafts[node - 1] = token
    return drafts


def paths_of(parents: Sequence[int]) -> Iterator[list[int]]:
    """Yield the nodes from below the root to each leaf; nothing for a root alone."""
    for leaf in sorted({*range(len(parents) + 1)} - {*parents}):
        path = [leaf] if leaf else []
        while path and parents[path[-1] - 1]:
            path.append(parents[path[-1] - 1])
        yield path[::-1]
