"""Masks behind the drafts of a tree: a matcher follows each of its paths."""

from collections.abc import Iterator, Sequence

import numpy as np

from eagle3_jax.engine.grammars.interface import Matcher
from eagle3_jax.sampling.token_mask import ALL_ALLOWED


def fill_nodes(
    matcher: Matcher, masks: np.ndarray, draft_ids: Sequence[int], parents: Sequence[int]
) -> list[int]:
    """`Matcher.fill` for drafts of which each comes behind the node parents[i]: 0 is the last
    token known, i + 1 the draft i. A chain has one path. Paths that begin alike agree there."""
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
    """The nodes from below the root to each leaf; of a root alone none."""
    for leaf in sorted({*range(len(parents) + 1)} - {*parents}):
        path = [leaf] if leaf else []
        while path and parents[path[-1] - 1]:
            path.append(parents[path[-1] - 1])
        yield path[::-1]
