"""Packs host plans into the fixed shapes the prefill program takes. NumPy only."""

from dataclasses import replace

import numpy as np

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.scheduler import ChunkPlan
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling_rows import MAX_STOP_IDS, SamplingRows
from eagle3_jax.speculative.state import PrefillChunk


def empty_chunk(config: EngineConfig) -> PrefillChunk:
    """A chunk of no tokens: every shape and dtype of the prefill program's input."""
    zero = np.int32(0)
    real, integer = np.zeros((1,), np.float32), np.zeros((1,), np.int32)
    return PrefillChunk(
        tokens=np.zeros((config.prefill_chunk + 1,), np.int32),
        page_table=np.zeros((1, config.pages_per_seq), np.int32),
        start=zero,
        length=zero,
        last=np.bool_(False),
        slot=zero,
        max_len=zero,
        num_drafts=zero,
        options=SamplingRows(
            temperature=real,
            top_p=real,
            min_p=real,
            top_k=integer,
            seed=np.zeros((1, 2), np.uint32),
            min_len=integer,
            stop_ids=np.full((1, MAX_STOP_IDS), -1, np.int32),
        ),
    )


def pack_chunk(plan: ChunkPlan, config: EngineConfig, num_drafts: int) -> PrefillChunk:
    """One chunk of a sequence's prompt, with the token that follows it where there is one."""
    sequence, empty = plan.sequence, empty_chunk(config)
    ids = sequence.prefill_ids[plan.start : plan.start + plan.length + 1]
    empty.tokens[: len(ids)] = ids
    empty.page_table[0, : len(sequence.pages)] = sequence.pages
    return replace(
        empty,
        start=np.int32(plan.start),
        length=np.int32(plan.length),
        last=np.bool_(plan.last),
        slot=np.int32(sequence.slot),
        max_len=np.int32(sequence.limit),
        num_drafts=np.int32(num_drafts),
        options=pack_options(sequence),
    )


def pack_options(sequence: Sequence) -> SamplingRows:
    """A request's sampling options as one device row."""
    sampling, seed = sequence.request.sampling, sequence.seed % 2**64
    stops = np.full((1, MAX_STOP_IDS), -1, np.int32)
    stops[0, : len(sequence.stop_ids)] = sequence.stop_ids
    return SamplingRows(
        temperature=np.array([sampling.temperature], np.float32),
        top_p=np.array([sampling.top_p], np.float32),
        min_p=np.array([sampling.min_p], np.float32),
        top_k=np.array([max(sampling.top_k, 0)], np.int32),
        seed=np.array([[seed % 2**32, seed >> 32]], np.uint32),
        min_len=np.array([len(sequence.request.prompt_ids) + sampling.min_tokens], np.int32),
        stop_ids=stops,
    )
