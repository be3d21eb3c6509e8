"""Options that look at token ids: bias, allowed ids, bad words, penalties; exact inside a chain.

The row that decides position j of a chain sees the drafts before it as if they were committed: if
they are rejected, so is its choice. Rows are kept per slot beside the decode state, and only the
full programs read them; what is committed is counted, what is rejected never was.
"""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.collectives import Axis, first_column
from eagle3_jax.sampling_limits import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_KERNEL_BIASES,
    MAX_REQUEST_STOP_IDS,
)
from eagle3_jax.sampling_rows import SamplingRows
from eagle3_jax.vocabulary import column_ids, own_columns

NO_TOKEN = -1  # in every list of ids: nothing here
ANY_TOKEN = -2  # in front of a bad word that is shorter than the longest


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenBiases:
    """What is added to the logits of a few ids, which are padded with NO_TOKEN."""

    ids: Int[Array, "batch biases"]
    values: Float[Array, "batch biases"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TokenControls:
    """One row per slot, or the rows of one batch; whole on every device, whatever is split.

    enabled: the row has such options at all; the others keep their logits bit for bit.
    bias: added to the logits; -inf bars a token. biases: the same for a kernel, of rows that have
    a few biases and nothing else here (eagle3_jax.speculative.head_choice).
    bad_words: ids, aligned to the right. stop_ids: every id that may not come before min_len.
    repetition divides or multiplies the logits of tokens seen in prompt or answer; presence and
    frequency are subtracted, once or by count, for tokens of the answer. in_prompt, counts: what
    was seen. tail: the answer's last tokens.
    processed_logprobs: its log-probabilities are those after all options; enabled or not.
    """

    enabled: Bool[Array, " batch"]
    bias: Float[Array, "batch vocab"]
    biases: TokenBiases
    bad_words: Int[Array, "batch words word_tokens"]
    stop_ids: Int[Array, "batch all_stop_ids"]
    repetition: Float[Array, " batch"]
    presence: Float[Array, " batch"]
    frequency: Float[Array, " batch"]
    in_prompt: Bool[Array, "batch vocab"]
    counts: Int[Array, "batch vocab"]
    tail: Int[Array, "batch context"]
    processed_logprobs: Bool[Array, " batch"]


def empty_controls(slots: int, vocab_size: int) -> TokenControls:
    """Slots without such options."""
    return TokenControls(
        enabled=jnp.zeros((slots,), bool),
        bias=jnp.zeros((slots, vocab_size), jnp.float32),
        biases=no_biases(slots),
        bad_words=jnp.full((slots, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS), NO_TOKEN, jnp.int32),
        stop_ids=jnp.full((slots, MAX_REQUEST_STOP_IDS), NO_TOKEN, jnp.int32),
        repetition=jnp.ones((slots,), jnp.float32),
        presence=jnp.zeros((slots,), jnp.float32),
        frequency=jnp.zeros((slots,), jnp.float32),
        in_prompt=jnp.zeros((slots, vocab_size), bool),
        counts=jnp.zeros((slots, vocab_size), jnp.int32),
        tail=jnp.full((slots, MAX_BAD_WORD_TOKENS - 1), NO_TOKEN, jnp.int32),
        processed_logprobs=jnp.zeros((slots,), bool),
    )


def no_biases(rows: int) -> TokenBiases:
    """Rows without any."""
    shape = rows, MAX_KERNEL_BIASES
    return TokenBiases(jnp.full(shape, NO_TOKEN, jnp.int32), jnp.zeros(shape, jnp.float32))


def enabled_biases(controls: TokenControls) -> TokenBiases:
    """Those of rows that have controls: a slot keeps what it had before."""
    ids = jnp.where(controls.enabled[:, None], controls.biases.ids, NO_TOKEN)
    return TokenBiases(ids, controls.biases.values)


def control_logits(
    logits: Float[Array, "batch rows vocab"],
    positions: Int[Array, "batch rows"],
    draft_ids: Int[Array, "batch drafts"],
    options: SamplingRows,
    controls: TokenControls,
    token_ids: Int[Array, " vocab"] | None = None,
    axis: Axis = None,
) -> Float[Array, "batch rows vocab"]:
    """Float32 logits that sampling goes on with; -inf where a token is barred.

    In order: allowed ids, bad words, stop ids before min_len, bias, repetition, frequency and
    presence penalty (vLLM's definitions). The last row sees all drafts, each row before it one
    less. token_ids: the target id of each column, ascending, for a reduced draft vocabulary.
    axis: over which the logits are split (eagle3_jax.vocabulary).
    """
    rows, drafts = logits.shape[1], draft_ids.shape[1]
    num_before = jnp.arange(rows)[None] + (drafts - rows + 1)
    return control_nodes(
        logits, positions, draft_ids[:, None], num_before, options, controls, token_ids, axis
    )


def control_nodes(
    logits: Float[Array, "batch rows vocab"],
    positions: Int[Array, "batch rows"],
    paths: Int[Array, "batch rows_or_1 drafts"],
    num_before: Int[Array, "batch_or_1 rows"],
    options: SamplingRows,
    controls: TokenControls,
    token_ids: Int[Array, " vocab"] | None = None,
    axis: Axis = None,
) -> Float[Array, "batch rows vocab"]:
    """As `control_logits` where rows have drafts of their own, the first num_before of a path."""
    early = positions < options.min_len[:, None]
    stops = jnp.where(early[..., None], controls.stop_ids[:, None], NO_TOKEN)
    bias = own_columns(controls.bias, logits.shape[-1], token_ids, axis)
    scores = logits.astype(jnp.float32) + bias[:, None]
    scores = _bar(scores, _completing_ids(controls, paths, num_before), token_ids, axis)
    scores = _bar(scores, stops, token_ids, axis)
    scores = _penalize(scores, controls, paths, num_before, token_ids, axis)
    return jnp.where(controls.enabled[:, None, None], scores, logits)


def commit_tokens(
    slots: TokenControls,
    slot_ids: Int[Array, " batch"],
    token_ids: Int[Array, "batch width"],
    num_committed: Int[Array, " batch"],
) -> TokenControls:
    """Counts the first num_committed tokens of each row in its slot."""
    kept = jnp.arange(token_ids.shape[1]) < num_committed[:, None]
    counted = slot_ids[:, None], jnp.where(kept, token_ids, 0)
    recent = jnp.concatenate([slots.tail[slot_ids], token_ids], axis=1)
    window = num_committed[:, None] + jnp.arange(slots.tail.shape[1])
    return replace(
        slots,
        counts=slots.counts.at[counted].add(kept.astype(jnp.int32)),
        tail=slots.tail.at[slot_ids].set(jnp.take_along_axis(recent, window, axis=1)),
    )


def open_controls(
    slots: TokenControls, row: TokenControls | None, slot: Int[Array, ""], token: Int[Array, "1 1"]
) -> TokenControls:
    """The slot with this row [1, ...] and its first token; without a row it is not enabled."""
    if row is None:
        return replace(slots, enabled=slots.enabled.at[slot].set(False))
    slots = jax.tree.map(lambda all_rows, new: all_rows.at[slot].set(new[0]), slots, row)
    return commit_tokens(slots, slot[None], token, jnp.ones((1,), jnp.int32))


def _completing_ids(
    controls: TokenControls,
    paths: Int[Array, "batch rows_or_1 drafts"],
    num_before: Int[Array, "batch_or_1 rows"],
) -> Int[Array, "batch rows words"]:
    """The last id of each bad word whose other ids are what comes before a row, else NO_TOKEN."""
    size = controls.tail.shape[1]
    tail = jnp.broadcast_to(controls.tail[:, None], (*paths.shape[:2], size))
    window = num_before[..., None] + jnp.arange(size)
    context = jnp.take_along_axis(jnp.concatenate([tail, paths], axis=2), window, axis=2)
    prefix, last = controls.bad_words[:, None, :, :-1], controls.bad_words[:, None, :, -1]
    matches = ((prefix == ANY_TOKEN) | (prefix == context[:, :, None])).all(-1)
    return jnp.where(matches, last, NO_TOKEN)


def _bar(
    scores: Float[Array, "batch rows vocab"],
    barred: Int[Array, "batch rows ids"],
    token_ids: Int[Array, " vocab"] | None,
    axis: Axis,
) -> Float[Array, "batch rows vocab"]:
    """-inf at the columns of these ids. A scatter: comparing with every column costs far more."""
    batch, rows, vocab = scores.shape
    if token_ids is None:
        columns = barred - first_column(vocab, axis)
    else:
        columns = jnp.searchsorted(token_ids, barred)
        found = token_ids.at[columns].get(mode="fill", fill_value=NO_TOKEN) == barred
        columns = jnp.where(found, columns, NO_TOKEN)
    columns = jnp.where(columns >= 0, columns, vocab)
    where = jnp.arange(batch)[:, None, None], jnp.arange(rows)[:, None], columns
    return scores.at[where].set(-jnp.inf, mode="drop")


def _penalize(
    scores: Float[Array, "batch rows vocab"],
    controls: TokenControls,
    paths: Int[Array, "batch rows_or_1 drafts"],
    num_before: Int[Array, "batch_or_1 rows"],
    token_ids: Int[Array, " vocab"] | None,
    axis: Axis,
) -> Float[Array, "batch rows vocab"]:
    """Repetition, then frequency and presence, with the drafts before each row counted."""
    vocab = scores.shape[-1]
    ids = column_ids(vocab, token_ids, axis)
    before = jnp.arange(paths.shape[2]) < num_before[..., None]
    drafted = (paths[..., None] == ids) & before[..., None]
    counts = own_columns(controls.counts, vocab, token_ids, axis)[:, None]
    counts += drafted.sum(2, dtype=jnp.int32)
    seen = (counts > 0) | own_columns(controls.in_prompt, vocab, token_ids, axis)[:, None]
    factor = jnp.where(seen, controls.repetition[:, None, None], 1.0)
    scores = jnp.where(scores > 0, scores / factor, scores * factor)
    scores -= controls.frequency[:, None, None] * counts
    return scores - controls.presence[:, None, None] * (counts > 0)
