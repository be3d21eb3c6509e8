"""Device rows of requests, made by the engine's own packing, so that every option takes part."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.engine import Request
from eagle3_jax.engine.programs.packing import pack_options
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.speculative.state import NO_PAUSE, SlotRows

ROOM = 100_000


def option_rows(
    sampling: Sequence[SamplingParams], prompt: Sequence[int], eos: Sequence[int] = ()
) -> SamplingRows:
    """One row for each request after this prompt."""

    def row(params: SamplingParams) -> SamplingRows:
        request = Request("", list(prompt), params)
        return pack_options(EngineSequence.of(request, eos, ROOM, None))

    stacked: Any = jax.tree.map(lambda *rows: np.concatenate(rows), *map(row, sampling))
    return jax.tree.map(jnp.asarray, stacked)


def decoding_rows(
    options: SamplingRows, seq_lens: np.ndarray, max_lens: np.ndarray, num_drafts: int
) -> SlotRows:
    """Rows in the middle of decoding, as verify sees them: no features, nothing verified yet."""
    batch = len(seq_lens)
    zeros = jnp.zeros((batch, num_drafts + 1), jnp.int32)
    return SlotRows(
        seq_lens=jnp.asarray(seq_lens, jnp.int32),
        max_lens=jnp.asarray(max_lens, jnp.int32),
        num_drafts=jnp.full((batch,), num_drafts, jnp.int32),
        verified_tokens=zeros,
        num_accepted=zeros[:, 0],
        aux_hidden=jnp.zeros((batch, num_drafts + 1, 1)),
        finished=zeros[:, 0] > 0,
        pause_id=zeros[:, 0] + NO_PAUSE,
        options=options,
    )
