"""Packing of a request's token options and token counts. NumPy only."""

import numpy as np

from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.limits import MAX_BAD_WORD_TOKENS, MAX_KERNEL_BIASES
from eagle3_jax.speculative.logit_control_rows import ANY_TOKEN, LogitControls, no_controls


def pack_controls(sequence: Sequence, vocab_size: int) -> LogitControls:
    """Pack a sequence's row, counting the tokens that it is about to prefill.

    All tokens are counted, because cached pages are not prefilled, and after preemption the answer
    so far is prefilled too.
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
    row.enabled[0] = True
    row.repetition[0] = sampling.repetition_penalty
    row.presence[0] = sampling.presence_penalty
    row.frequency[0] = sampling.frequency_penalty
    if sampling.allowed_token_ids is not None:
        row.bias[:] = -np.inf
        row.bias[0, list(sampling.allowed_token_ids)] = 0
    for token, value in sampling.bias_pairs:
        row.bias[0, token] += value
    return row
