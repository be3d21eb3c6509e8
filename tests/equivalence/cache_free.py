"""Greedy drafting in its plainest form: no cache, every pass over the whole sequence."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.models.eagle3 import Eagle3Draft

MAX_ROWS = 96
"""All passes are padded to this many rows: attention is causal, so that later rows don't matter."""


@dataclass(frozen=True)
class Chain:
    """The draft's proposal: target ids, logits [steps, draft_vocab], states [steps, hidden]."""

    tokens: list[int]
    logits: np.ndarray
    states: np.ndarray


def padded(rows: Sequence[int] | np.ndarray) -> jax.Array:
    """Rows (token ids or features) followed by zeros up to MAX_ROWS."""
    array = np.asarray(rows)
    fill = [(0, MAX_ROWS - len(array))] + [(0, 0)] * (array.ndim - 1)
    return jnp.asarray(np.pad(array, fill).astype(jnp.result_type(array)))


@jax.jit
def _draft_rows(
    draft: Eagle3Draft, tokens: jax.Array, states: jax.Array
) -> tuple[jax.Array, jax.Array]:
    hidden, _ = draft(tokens[None], states[None], jnp.arange(MAX_ROWS)[None])
    return draft.logits(hidden[0]), hidden[0]


def draft_chain(
    draft: Eagle3Draft, tokens: np.ndarray, aux_hidden: np.ndarray, *, steps: int
) -> Chain:
    """Greedy steps from rows (token i+1, aux i): a new row takes the last token and state."""
    rows = len(tokens)
    row_tokens = np.array(padded(tokens))
    states = np.array(draft.fuse(padded(aux_hidden)))
    target_ids = None if draft.target_ids is None else np.asarray(draft.target_ids)
    proposed: list[int] = []
    logits_of: list[np.ndarray] = []
    for row in range(rows - 1, rows - 1 + steps):
        logits, hidden = _draft_rows(draft, jnp.asarray(row_tokens), jnp.asarray(states))
        logits_of.append(np.asarray(logits)[row])
        best = int(logits_of[-1].argmax())
        proposed.append(best if target_ids is None else int(target_ids[best]))
        row_tokens[row + 1], states[row + 1] = proposed[-1], np.asarray(hidden)[row]
    return Chain(proposed, np.stack(logits_of), states[rows : rows + steps])
