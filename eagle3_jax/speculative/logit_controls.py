"""Logit options that act on token ids: bias, allowed ids, bad words, penalties.

They are exact within a chain. The row that decides position j sees the earlier drafts as if they
were committed; if these are rejected, so is its choice.
"""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from eagle3_jax.collectives import Axis, first_column
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.speculative.logit_control_rows import ANY_TOKEN, NO_TOKEN, LogitControls
from eagle3_jax.vocabulary import column_ids, own_columns


def control_logits(
    logits: Float[Array, "batch rows vocab"],
    positions: Int[Array, "batch rows"],
    draft_ids: Int[Array, "batch *rows drafts"],
    options: SamplingRows,
    logit_controls: LogitControls,
    token_ids: Int[Array, " vocab"] | None = None,
    axis: Axis = None,
    num_before: Int[Array, "batch_or_1 rows"] | None = None,
) -> Float[Array, "batch rows vocab"]:
    """Return float32 logits with the options applied; -inf where a token is barred.

    In order: allowed ids, bad words, stop ids before min_len, bias, repetition, frequency and
    presence penalty (vLLM's definitions). The last row sees all drafts, each earlier row one fewer;
    with `num_before` each row sees that many drafts of a path of its own. `token_ids` is the target
    id of each column, ascending, for a reduced vocabulary. `axis` splits the logits
    (eagle3_jax.vocabulary).
    """
    paths = draft_ids
    if num_before is None:
        rows, drafts = logits.shape[1], draft_ids.shape[1]
        num_before = jnp.arange(rows)[None] + (drafts - rows + 1)
        paths = draft_ids[:, None]
    early = positions < options.min_len[:, None]
    stops = jnp.where(early[..., None], logit_controls.stop_ids[:, None], NO_TOKEN)
    bias = own_columns(logit_controls.bias, logits.shape[-1], token_ids, axis)
    scores = logits.astype(jnp.float32) + bias[:, None]
    scores = _bar(scores, _completing_ids(logit_controls, paths, num_before), token_ids, axis)
    scores = _bar(scores, stops, token_ids, axis)
    scores = _penalize(scores, logit_controls, paths, num_before, token_ids, axis)
    return jnp.where(logit_controls.enabled[:, None, None], scores, logits)


def _completing_ids(
    logit_controls: LogitControls,
    paths: Int[Array, "batch rows_or_1 drafts"],
    num_before: Int[Array, "batch_or_1 rows"],
) -> Int[Array, "batch rows words"]:
    """Return the last id of each bad word whose other ids precede a row, else NO_TOKEN."""
    size = logit_controls.tail.shape[1]
    tail = jnp.broadcast_to(logit_controls.tail[:, None], (*paths.shape[:2], size))
    window = num_before[..., None] + jnp.arange(size)
    context = jnp.take_along_axis(jnp.concatenate([tail, paths], axis=2), window, axis=2)
    prefix, last = (
        logit_controls.bad_words[:, None, :, :-1],
        logit_controls.bad_words[:, None, :, -1],
    )
    matches = ((prefix == ANY_TOKEN) | (prefix == context[:, :, None])).all(-1)
    return jnp.where(matches, last, NO_TOKEN)


def _bar(
    scores: Float[Array, "batch rows vocab"],
    barred: Int[Array, "batch rows ids"],
    token_ids: Int[Array, " vocab"] | None,
    axis: Axis,
) -> Float[Array, "batch rows vocab"]:
    """Set these ids' columns to -inf by a scatter; comparing with every column costs far more."""
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
    logit_controls: LogitControls,
    paths: Int[Array, "batch rows_or_1 drafts"],
    num_before: Int[Array, "batch_or_1 rows"],
    token_ids: Int[Array, " vocab"] | None,
    axis: Axis,
) -> Float[Array, "batch rows vocab"]:
    """Apply repetition, frequency and presence penalties, counting the drafts before each row."""
    vocab = scores.shape[-1]
    ids = column_ids(vocab, token_ids, axis)
    before = jnp.arange(paths.shape[2]) < num_before[..., None]
    drafted = (paths[..., None] == ids) & before[..., None]
    counts = own_columns(logit_controls.counts, vocab, token_ids, axis)[:, None]
    counts += drafted.sum(2, dtype=jnp.int32)
    seen = (counts > 0) | own_columns(logit_controls.in_prompt, vocab, token_ids, axis)[:, None]
    factor = jnp.where(seen, logit_controls.repetition[:, None, None], 1.0)
    scores = jnp.where(scores > 0, scores / factor, scores * factor)
    scores -= logit_controls.frequency[:, None, None] * counts
    return scores - logit_controls.presence[:, None, None] * (counts > 0)
