"""An engine's state between rounds, and the difference of two states."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from eagle3_jax.speculative.state import DecodeState


@dataclass(frozen=True)
class Held:
    """A state on the host, and a round's slots [batch] and page table [batch, pages_per_seq]."""

    state: DecodeState
    slots: np.ndarray
    table: np.ndarray


def state_errors(expected: Held, found: Held) -> dict[str, float]:
    """Return |found - expected| / |expected| (2-norms) by name, for data the next round reads.

    This is the target's KV of all committed rows, the draft's KV of rows that are not rewritten
    later, and the features of the rows verified last. The states must follow equal reports.
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
    """Return the first rows of a sequence with these pages, float32 [count, *row]."""
    return np.asarray(pool[pages], np.float32).reshape(-1, *pool.shape[2:])[:count]
