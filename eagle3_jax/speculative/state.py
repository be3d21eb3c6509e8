"""What lives on the device between programs, and nothing else: the donated decode state.

Noise is a function of seed, position and id, so no random state is kept.
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
from eagle3_jax.speculative.widths import Widths

NO_ROW = -1
"""In place of a row of features: the token is no image's."""
NO_PAUSE = -3
"""In place of a pause_id: neither a token nor what stands for one that could not be chosen."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SlotRows:
    """One row per engine slot (plus one for padding), or the gathered rows of one batch.

    seq_lens: int32, n = tokens whose target KV is committed = position of the last token, whose
        own KV is not written yet.
    max_lens: int32, most tokens the sequence may have (prompt + answer).
    num_drafts: int32, 0..k, how many drafts this request wants verified.
    verified_tokens: int32 [slots, k+1], tokens at positions n-a .. n decided by the last verify.
    num_accepted: int32, a of the last verify (0 after prefill).
    aux_hidden: [slots, k+1, n_aux * hidden], target features at positions n-a-1 .. n-1.
    finished: bool, the row is done: it computes on scratch and commits nothing.
    pause_id: int32, the token behind which it is paused: only a round with masks goes on from
        there, to others it is finished. NO_PAUSE for none.
    options: sampling options of the request.
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
        """Those whose own KV is not written yet."""
        return jnp.take_along_axis(self.verified_tokens, self.num_accepted[:, None], axis=1)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DecodeState:
    """Everything alive between rounds: KV pools (one array per layer) and slot rows.

    draft_pools is empty without a draft, else its keys and values, or its latents. logit_controls:
    rows of options that only the full programs read. image_features: of images' tokens, in rows
    that the host gives out, the last of them scratch; None without a vision model.
    """

    target_pools: tuple[KVPool, ...]
    draft_pools: tuple[KVPool, ...]
    slots: SlotRows
    logit_controls: LogitControls
    image_features: Float[Array, "tokens hidden"] | None = None


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class PrefillChunk:
    """One chunk of one prompt, as the host sends it.

    tokens: int32 [chunk + 1], the chunk's tokens and the one after it (any id behind the last).
    start: position of the first; length: how many of them are real; last: the prompt ends here.
    slot, max_len, num_drafts, pause_id, options [1, ...]: the row to open when the prompt is
    complete.
    logit_controls [1, ...]: None in the lean program; its counts are those of the whole prompt.
    mask: which tokens may be sampled, a bit each (sampling.token_mask), None in the lean program
    too.
    feature_rows: int32 [chunk + 1], the row of DecodeState.image_features that stands for a token,
    NO_ROW for text; None without a vision model.
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
    """Slots that are all finished."""

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
