"""Packing of sequences into the fixed shapes of programs. NumPy only."""

from collections.abc import Iterable
from collections.abc import Sequence as Sequences
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import DTypeLike

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.options import MAX_BAD_WORD_TOKENS, MAX_KERNEL_BIASES
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows, pack_sampling
from eagle3_jax.speculative.logit_control_rows import (
    ANY_TOKEN,
    NO_TOKEN,
    LogitControls,
    no_controls,
)
from eagle3_jax.speculative.state import NO_PAUSE, NO_ROW, PrefillChunk


def empty_chunk(config: EngineConfig, *, images: bool = False) -> PrefillChunk:
    """Make a dummy chunk of one token in the padding slot, which writes to scratch.

    It has every shape and dtype of the program's input; `images` adds those of a vision model.
    """
    return PrefillChunk(
        tokens=_pack([0] * (config.prefill_chunk + 1)),
        page_table=_pack(pack_page_table((), 1, config)),
        start=_pack(0),
        length=_pack(1),
        last=_pack(False, np.bool_),
        slot=_pack(config.max_num_seqs),
        max_len=_pack(0),
        num_drafts=_pack(0),
        pause_id=_pack(NO_PAUSE),
        options=pack_sampling(SamplingParams(temperature=0)),
        feature_rows=_pack([NO_ROW] * (config.prefill_chunk + 1)) if images else None,
    )


def pack_chunk(part: ChunkPlan, config: EngineConfig, num_drafts: int) -> PrefillChunk:
    """Pack one chunk of a sequence's prompt and the next token, if there is one."""
    sequence, end = part.sequence, part.start + part.length + 1
    ids, rows = sequence.prefill_ids[part.start : end], part.feature_rows
    if rows is not None:
        rows = np.pad(rows, (0, config.prefill_chunk - part.length), constant_values=NO_ROW)
    return replace(
        empty_chunk(config),
        tokens=_pack([*ids, *[0] * (config.prefill_chunk + 1 - len(ids))]),
        page_table=_pack(pack_page_table((sequence,), 1, config)),
        start=_pack(part.start),
        length=_pack(part.length),
        last=_pack(part.last, np.bool_),
        slot=_pack(sequence.slot),
        max_len=_pack(sequence.limit),
        num_drafts=_pack(sequence.wanted_drafts(num_drafts)),
        pause_id=_pack(sequence.pause_id),
        options=pack_options(sequence),
        feature_rows=None if rows is None else _pack(rows),
    )


def pack_page_table(
    sequences: Sequences[Sequence],
    rows: int,
    config: EngineConfig,
    places: Iterable[int] | None = None,
) -> Int[np.ndarray, "rows pages_per_seq"]:
    """Return each sequence's pages, padded with scratch; unused rows are scratch.

    `places` are the sequences' rows if these are not the first ones.
    """
    table = np.full((rows, config.pages_per_seq), SCRATCH_PAGE, np.int32)
    for row, sequence in zip(places or range(rows), sequences, strict=False):
        table[row, : len(sequence.pages)] = sequence.pages
    return table


def pack_history(
    sequence: Sequence | None, config: EngineConfig
) -> tuple[Int[np.ndarray, ""], Int[np.ndarray, " max_model_len"]]:
    """Return a sequence's slot and its tokens by position, or the padding slot.

    Positions of images and unknown tokens are NO_TOKEN.
    """
    row = np.full((config.max_model_len,), NO_TOKEN, np.int32)
    if sequence is None:
        return _pack(config.max_num_seqs), row
    row[: len(sequence.prefill_ids)] = sequence.prefill_ids
    for image in sequence.request.images:
        row[image.start : image.end] = NO_TOKEN
    return _pack(sequence.slot), row


def pack_options(sequence: Sequence) -> SamplingRows:
    """Pack a request's sampling options as one device row."""
    sampling, prompt_length = sequence.request.sampling, len(sequence.request.prompt_ids)
    min_len = prompt_length + sampling.min_tokens
    return pack_sampling(sampling, sequence.seed, min_len, sequence.stop_ids)


def _pack(value: Any, dtype: DTypeLike = np.int32) -> Any:
    """Make a NumPy array that stands in for a device array until the runner sends it."""
    return np.array(value, dtype)


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
