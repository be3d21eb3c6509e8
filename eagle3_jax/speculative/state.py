"""The donated decode state: all arrays on the device that live between programs.

Noise is a function of seed, position and id, so there is no random state.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int, UInt32

from eagle3_jax.cache import KVPool
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows, pack_sampling
from eagle3_jax.speculative.logit_control_rows import LogitControls
from eagle3_jax.speculative.method import Widths

NO_ROW = -1
"""Feature row of a token that belongs to no image."""
NO_PAUSE = -3
"""`pause_id` of a row without one; equals no token and no code for a token without candidates."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlotRows:
    """One row per engine slot (plus one for padding), or the gathered rows of one batch.

    Attributes:
        seq_lens: int32, n = tokens with committed target KV = position of the last token.
        max_lens: int32, maximum tokens of the sequence (prompt + answer).
        num_drafts: int32, 0..k, drafts that the request wants verified.
        verified_tokens: int32 [slots, k+1], tokens at positions n-a .. n from the last verify.
        num_accepted: int32, a of the last verify (0 after prefill).
        aux_hidden: [slots, k+1, n_aux * hidden], target features at positions n-a-1 .. n-1.
        finished: bool, the row is done: it computes on scratch and commits nothing.
        pause_id: int32, the token after which the row is paused: only rounds with masks resume it,
            to others it is finished. NO_PAUSE for none.
        options: Sampling options of the request.
    """

    seq_lens: Int[Array, " slots"]
    max_lens: Int[Array, " slots"]
    num_drafts: Int[Array, " slots"]
    verified_tokens: Int[Array, "slots width"]
    num_accepted: Int[Array, " slots"]
    aux_hidden: Float[Array, "slots width aux"]
    finished: Bool[Array, " slots"]
    pause_id: Int[Array, " slots"]
    options: SamplingRows

    @property
    def last_tokens(self) -> Int[Array, "slots 1"]:
        """Last tokens, whose own KV is not written yet."""
        return jnp.take_along_axis(self.verified_tokens, self.num_accepted[:, None], axis=1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """KV pools (one array per layer), slot rows and other arrays that live between rounds.

    `draft_pools` are the draft's keys and values, or latents; empty without a draft.
    `logit_controls` are read by full programs only. `image_features` has rows that the host
    assigns, the last one scratch; None without a vision model. `history` has each slot's tokens by
    position, for lookup (eagle3_jax.speculative.lookup); None without.
    """

    target_pools: tuple[KVPool, ...]
    draft_pools: tuple[KVPool, ...]
    slots: SlotRows
    logit_controls: LogitControls
    image_features: Float[Array, "tokens hidden"] | None = None
    history: Int[Array, "slots positions"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrefillChunk:
    """One chunk of one prompt, as the host sends it.

    Attributes:
        tokens: int32 [chunk + 1], the chunk's tokens and the next one (any id after the last).
        start, length, last: Position of the first token, number of real tokens, end of the prompt.
        slot, max_len, num_drafts, pause_id, options: The row [1, ...] to open after the last chunk.
        logit_controls: [1, ...], with counts of the whole prompt; None in the lean program.
        mask: Ids that may be sampled, one bit each (sampling.token_mask); None in the lean program.
        feature_rows: int32 [chunk + 1], row of DecodeState.image_features per token, NO_ROW for
            text; None without a vision model.
    """

    tokens: Int[Array, " chunk_and_next"]
    page_table: Int[Array, "1 pages_per_seq"]
    start: Int[Array, ""]
    length: Int[Array, ""]
    last: Bool[Array, ""]
    slot: Int[Array, ""]
    max_len: Int[Array, ""]
    num_drafts: Int[Array, ""]
    pause_id: Int[Array, ""]
    options: SamplingRows
    logit_controls: LogitControls | None = None
    mask: UInt32[Array, "1 words"] | None = None
    feature_rows: Int[Array, " chunk_and_next"] | None = None


def empty_slots(slots: int, width: int, aux_size: int, dtype: DTypeLike) -> SlotRows:
    """Make slots that are all finished."""

    def zeros(*shape: int, dtype: DTypeLike = jnp.int32) -> Array:
        return jnp.zeros((slots, *shape), dtype)

    greedy = pack_sampling(SamplingParams(temperature=0))
    return SlotRows(
        seq_lens=zeros(),
        max_lens=zeros(),
        num_drafts=zeros(),
        verified_tokens=zeros(width),
        num_accepted=zeros(),
        aux_hidden=zeros(width, aux_size, dtype=dtype),
        finished=jnp.ones((slots,), bool),
        pause_id=jnp.full((slots,), NO_PAUSE, jnp.int32),
        options=jax.tree.map(lambda row: jnp.repeat(row, slots, axis=0), greedy),
    )


def narrow(rows: SlotRows, widths: Widths) -> SlotRows:
    """Cut rows to a round's widths; finished rows may be wider than the round."""
    return replace(
        rows,
        num_drafts=jnp.minimum(rows.num_drafts, widths.verified),
        num_accepted=jnp.minimum(rows.num_accepted, widths.first_rows - 1),
        verified_tokens=rows.verified_tokens[:, : widths.first_rows],
        aux_hidden=rows.aux_hidden[:, : widths.first_rows],
    )


def widen(rows: Array, width: int) -> Array:
    """Pad [batch, rows, ...] to the state's width with zeros after this round's rows."""
    missing = width - rows.shape[1]
    if missing == 0:
        return rows
    return jnp.pad(rows, [(0, 0), (0, missing), *[(0, 0)] * (rows.ndim - 2)])
