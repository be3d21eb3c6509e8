"""Scattering contexts over pages as an engine would, with NaN wherever nothing was written."""

import numpy as np
from numpy.typing import NDArray


def scatter(
    contexts: list[NDArray[np.float32]], page_size: int, pages_per_seq: int, seed: int = 0
) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """Contexts [length, ...] of each sequence -> a pool in random page order and its page table."""
    pages = len(contexts) * pages_per_seq + 1
    order = np.random.default_rng(seed).permutation(pages)[:-1]
    table = order.reshape(len(contexts), pages_per_seq).astype(np.int32)
    pool = np.full((pages, page_size, *contexts[0].shape[1:]), np.nan, np.float32)
    for pages_of_seq, context in zip(table, contexts, strict=True):
        for slot, row in enumerate(context):
            pool[pages_of_seq[slot // page_size], slot % page_size] = row
    return pool, table


def attend(
    query: NDArray[np.float32], keys: NDArray[np.float32], values: NDArray[np.float32], scale: float
) -> NDArray[np.float64]:
    """One query [d] against keys [s, d] and values [s, v], in float64."""
    scores = keys.astype(np.float64) @ query.astype(np.float64) * scale
    weights = np.exp(scores - scores.max())
    return weights @ values.astype(np.float64) / weights.sum()


def local_parts(
    pool: NDArray[np.float32], positions: NDArray[np.int32], parts: int
) -> list[tuple[NDArray[np.float32], NDArray[np.int32]]]:
    """Each device's pool, with one of so many equal parts of every page, and of each position the
    last slot there that is not behind it, counted in the device's own slots; -1 for none."""
    size = pool.shape[1] // parts
    whole, rest = np.divmod(positions + 1, pool.shape[1])
    return [
        (
            pool[:, device * size : (device + 1) * size],
            (whole * size + np.clip(rest - device * size, 0, size) - 1).astype(np.int32),
        )
        for device in range(parts)
    ]
