"""Options that look at token ids, one row per slot, and what a row remembers of its tokens.

Rows are kept in the decode state and only the full programs read them; what is committed is
counted, what is rejected never was.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.sampling.limits import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_KERNEL_BIASES,
    MAX_REQUEST_STOP_IDS,
)

NO_TOKEN = -1  # in every list of ids: nothing here
ANY_TOKEN = -2  # in front of a bad word that is shorter than the longest


class TokenBiases(NamedTuple):
    """What is added to the logits of a few ids, which are padded with NO_TOKEN."""

    ids: Int[Array, "batch biases"]
    values: Float[Array, "batch biases"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class LogitControls:
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


def empty_controls(slots: int, vocab_size: int) -> LogitControls:
    """Slots without such options."""
    return jax.tree.map(lambda row: jnp.repeat(row, slots, axis=0), no_controls(vocab_size))


def no_controls(vocab_size: int) -> Any:
    """One row without such options: every shape and dtype of the full prefill's input."""
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
    """NumPy stands in for device arrays until they are sent."""
    return np.full((1, *shape), value, dtype)


def enabled_biases(logit_controls: LogitControls) -> TokenBiases:
    """Those of rows that have controls: a slot keeps what it had before."""
    ids = jnp.where(logit_controls.enabled[:, None], logit_controls.biases.ids, NO_TOKEN)
    return TokenBiases(ids, logit_controls.biases.values)


def commit_tokens(
    slots: LogitControls,
    slot_ids: Int[Array, " batch"],
    token_ids: Int[Array, "batch width"],
    num_committed: Int[Array, " batch"],
) -> LogitControls:
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
    slots: LogitControls, row: LogitControls | None, slot: Int[Array, ""], token: Int[Array, "1 1"]
) -> LogitControls:
    """The slot with this row [1, ...] and its first token; without a row it is not enabled."""
    if row is None:
        return replace(slots, enabled=slots.enabled.at[slot].set(False))
    slots = jax.tree.map(lambda all_rows, new: all_rows.at[slot].set(new[0]), slots, row)
    return commit_tokens(slots, slot[None], token, jnp.ones((1,), jnp.int32))
