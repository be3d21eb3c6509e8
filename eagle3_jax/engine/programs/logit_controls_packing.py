"""Packs a request's token options, and what its prompt and answer hold so far. NumPy only."""

from dataclasses import replace
from typing import Any

import numpy as np

from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.limits import (
    MAX_BAD_WORD_TOKENS,
    MAX_BAD_WORDS,
    MAX_KERNEL_BIASES,
    MAX_REQUEST_STOP_IDS,
)
from eagle3_jax.speculative.logit_control_rows import (
    ANY_TOKEN,
    NO_TOKEN,
    LogitControls,
    TokenBiases,
)


def no_controls(vocab_size: int) -> Any:
    """One row without any such option: every shape and dtype of the full prefill's input."""
    return LogitControls(
        enabled=_filled(False, np.bool_),
        bias=_filled(0, np.float32, vocab_size),
        biases=TokenBiases(
            _filled(NO_TOKEN, np.int32, MAX_KERNEL_BIASES),
            _filled(0, np.float32, MAX_KERNEL_BIASES),
        ),
        bad_words=_filled(NO_TOKEN, np.int32, MAX_BAD_WORDS, MAX_BAD_WORD_TOKENS),
        stop_ids=_filled(NO_TOKEN, np.int32, MAX_REQUEST_STOP_IDS),
        repetition=_filled(1, np.float32),
        presence=_filled(0, np.float32),
        frequency=_filled(0, np.float32),
        in_prompt=_filled(False, np.bool_, vocab_size),
        counts=_filled(0, np.int32, vocab_size),
        tail=_filled(NO_TOKEN, np.int32, MAX_BAD_WORD_TOKENS - 1),
        processed_logprobs=_filled(False, np.bool_),
    )


def pack_controls(sequence: Sequence, vocab_size: int) -> LogitControls:
    """A sequence's row, with what the tokens it is about to prefill count for.

    Counted from all of them, because pages found in a cache are not prefilled, and after a
    preemption the answer so far is part of what is.
    """
    row = no_controls(vocab_size)
    sampling, prompt_length = sequence.request.sampling, len(sequence.request.prompt_ids)
    row.processed_logprobs[0] = sampling.logprobs_mode == "processed_logprobs"
    if not sequence.controlled:
        return row
    for index, pair in enumerate(sampling.bias_pairs[:MAX_KERNEL_BIASES]):
        row.biases.ids[0, index], row.biases.values[0, index] = pair
    answer = sequence.prefill_ids[prompt_length:]
    row.stop_ids[0, : len(sequence.stop_ids)] = sequence.stop_ids
    row.in_prompt[0, sequence.request.prompt_ids] = True
    np.add.at(row.counts[0], answer, 1)
    recent = answer[-row.tail.shape[1] :]
    row.tail[0, row.tail.shape[1] - len(recent) :] = recent
    for index, word in enumerate(sampling.bad_words_ids):
        row.bad_words[0, index] = [ANY_TOKEN] * (MAX_BAD_WORD_TOKENS - len(word)) + list(word)
    return replace(
        row,
        enabled=_filled(True, np.bool_),
        bias=_bias(sequence, vocab_size),
        repetition=_filled(sampling.repetition_penalty, np.float32),
        presence=_filled(sampling.presence_penalty, np.float32),
        frequency=_filled(sampling.frequency_penalty, np.float32),
    )


def _bias(sequence: Sequence, vocab_size: int) -> Any:
    sampling = sequence.request.sampling
    bias = _filled(0, np.float32, vocab_size)
    if sampling.allowed_token_ids is not None:
        bias[:] = -np.inf
        bias[0, list(sampling.allowed_token_ids)] = 0
    for token, value in sampling.bias_pairs:
        bias[0, token] += value
    return bias


def _filled(value: float, dtype: Any, *shape: int) -> Any:
    """NumPy stands in for device arrays until the runner sends them."""
    return np.full((1, *shape), value, dtype)
