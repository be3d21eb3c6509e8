"""Packing of a prompt's chunk into the fixed shapes of the prefill program. NumPy only."""

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
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows, pack_sampling
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


def pack_options(sequence: Sequence) -> SamplingRows:
    """Pack a request's sampling options as one device row."""
    sampling, prompt_length = sequence.request.sampling, len(sequence.request.prompt_ids)
    min_len = prompt_length + sampling.min_tokens
    return pack_sampling(sampling, sequence.seed, min_len, sequence.stop_ids)


def _pack(value: Any, dtype: DTypeLike = np.int32) -> Any:
    """Make a NumPy array that stands in for a device array until the runner sends it."""
    return np.array(value, dtype)
