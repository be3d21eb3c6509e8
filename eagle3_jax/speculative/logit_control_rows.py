"""Per-slot rows of the options that act on token ids, with counts of each row's tokens.

The decode state holds the rows, and only full programs read them. Committed tokens are counted;
rejected drafts never are.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.sampling.options import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_KERNEL_BIASES,
    MAX_REQUEST_STOP_IDS,
)

NO_TOKEN = -1  # padding in every list of ids
ANY_TOKEN = -2  # left padding of a bad word shorter than the longest


class TokenBiases(NamedTuple):
    """Additive biases on the logits of a few ids, padded with NO_TOKEN."""

    ids: Int[Array, "batch biases"]
    values: Float[Array, "batch biases"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LogitControls:
    """Options that act on token ids, one row per slot or batch row; replicated on every device.

    Attributes:
        enabled: Whether the row has such options. Other rows keep their logits bit for bit.
        bias: Added to the logits; -inf bars a token.
        biases: The same for eagle3_jax.speculative.head_choice, in rows with only a few biases.
        bad_words, stop_ids: Ids of words, right-aligned; ids that are barred before min_len.
        repetition: Divides or multiplies the logits of tokens seen in prompt or answer.
        presence, frequency: Subtracted for tokens of the answer, once or per occurrence.
        in_prompt, counts, tail: Tokens of the prompt, counts in the answer, last answer tokens.
        processed_logprobs: Whether log-probabilities include all options; also for disabled rows.
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


def empty_controls(slots: int, vocab_size: int) -> LogitControls:
    return jax.tree.map(lambda row: jnp.repeat(row, slots, axis=0), no_controls(vocab_size))


def no_controls(vocab_size: int) -> Any:
    """Make one row without such options, with the shapes and dtypes of a full prefill's input."""
    none = partial(_filled, NO_TOKEN, np.int32)
    return LogitControls(
        enabled=_filled(False, np.bool_),
        bias=_filled(0, np.float32, vocab_size),
        biases=TokenBiases(none(MAX_KERNEL_BIASES), _filled(0, np.float32, MAX_KERNEL_BIASES)),
        bad_words=none(MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS),
        stop_ids=none(MAX_REQUEST_STOP_IDS),
        repetition=_filled(1, np.float32),
        presence=_filled(0, np.float32),
        frequency=_filled(0, np.float32),
        in_prompt=_filled(False, np.bool_, vocab_size),
        counts=_filled(0, np.int32, vocab_size),
        tail=none(MAX_BAD_WORD_TOKENS - 1),
        processed_logprobs=_filled(False, np.bool_),
    )


def _filled(value: float, dtype: Any, *shape: int) -> Any:
    """NumPy arrays stand in for device arrays until they are sent."""
    return np.full((1, *shape), value, dtype)


def enabled_biases(logit_controls: LogitControls) -> TokenBiases:
    """Return the biases of enabled rows only: a slot keeps the values of its previous request."""
    ids = jnp.where(logit_controls.enabled[:, None], logit_controls.biases.ids, NO_TOKEN)
    return TokenBiases(ids, logit_controls.biases.values)


def commit_tokens(
    slots: LogitControls,
    slot_ids: Int[Array, " batch"],
    token_ids: Int[Array, "batch width"],
    num_committed: Int[Array, " batch"],
) -> LogitControls:
    """Count the first `num_committed` tokens of each row in its slot."""
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
    slots: LogitControls, row: LogitControls | None, slot: Int[Array, ""], token: Int[Array, "1 1"]
) -> LogitControls:
    """Store a row [1, ...] and its first token in a slot; disable the slot if `row` is None."""
    if row is None:
        return replace(slots, enabled=slots.enabled.at[slot].set(False))
    slots = jax.tree.map(lambda all_rows, new: all_rows.at[slot].set(new[0]), slots, row)
    return commit_tokens(slots, slot[None], token, jnp.ones((1,), jnp.int32))
