"""Rounds narrower than the state: k' < k drafts, for an engine that chooses k round by round.

The state keeps room for the k+1 rows of its widest round. A round of k' drafts verifies k'+1 rows
and leaves the rest empty; what it reads of the round before is as wide as that round was.
"""

from dataclasses import replace
from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Array

from eagle3_jax.speculative.state import SlotRows


class Widths(NamedTuple):
    """Static sizes of a round.

    drafts: k', tokens it drafts. first_rows: rows of the draft's first pass, at least 1 + the
    drafts of the widest round that any of its sequences had last (a prefill counts as none).
    """

    drafts: int
    first_rows: int


def narrow(rows: SlotRows, widths: Widths) -> SlotRows:
    """The rows as a round of these widths reads them; finished ones, too wide for it, are cut."""
    return replace(
        rows,
        num_drafts=jnp.minimum(rows.num_drafts, widths.drafts),
        num_accepted=jnp.minimum(rows.num_accepted, widths.first_rows - 1),
        verified_tokens=rows.verified_tokens[:, : widths.first_rows],
        aux_hidden=rows.aux_hidden[:, : widths.first_rows],
    )


def widen(rows: Array, width: int) -> Array:
    """[batch, rows, ...] as the state keeps it: zeros after what this round verified."""
    missing = width - rows.shape[1]
    if missing == 0:
        return rows
    return jnp.pad(rows, [(0, 0), (0, missing), *[(0, 0)] * (rows.ndim - 2)])
