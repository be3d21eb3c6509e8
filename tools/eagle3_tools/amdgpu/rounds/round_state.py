"""What an engine holds between rounds, and how far two such states are apart."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3_jax.speculative.state import DecodeState


@dataclass(frozen=True)
class Held:
    """On the host: state, and a round's slots [batch] and page table [batch, pages_per_seq]."""

    state: DecodeState
    slots: np.ndarray
    table: np.ndarray


def state_errors(expected: Held, found: Held) -> dict[str, float]:
    """Of what the next round reads, by name: |found - expected| / |expected|, 2-norms.

    The target's KV of all committed rows, the draft's of those that no later pass writes again, and
    the features of the rows verified last. For states behind equal reports.
    """
    pairs = zip(_read_next(expected), _read_next(found), strict=True)
    return {name: float(np.linalg.norm(b - a) / np.linalg.norm(a)) for (name, a), (_, b) in pairs}


def _read_next(held: Held) -> Iterator[tuple[str, np.ndarray]]:
    rows, state = held.state.slots, held.state
    active = ~np.asarray(rows.finished)[held.slots]
    slots, table = held.slots[active], held.table[active]
    lengths, accepted = rows.seq_lens[slots], rows.num_accepted[slots]
    models = (
        ("target", state.target_pools, lengths),
        ("draft", state.draft_pools, lengths - accepted - 1),
    )
    for model, pools, counts in models:
        for number, pool in enumerate(pools):
            own = [_rows(pool, pages, count) for pages, count in zip(table, counts, strict=True)]
            yield f"{model} pool {number}", np.concatenate(own)
    features = np.asarray(rows.aux_hidden, np.float32)[slots]
    yield "features", features[np.arange(features.shape[1]) <= accepted[:, None]]


def _rows(pool: Any, pages: np.ndarray, count: int) -> np.ndarray:
    """The first rows of a sequence with these pages, float32 [count, *row]."""
    return np.asarray(pool[pages], np.float32).reshape(-1, *pool.shape[2:])[:count]
