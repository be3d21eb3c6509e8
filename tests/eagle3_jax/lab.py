"""The engine's own compiled programs on a state that a test may look into and spoil."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from tiny import VOCAB

from eagle3_jax.cache import KVPool, rows_and_scale
from eagle3_jax.engine import EngineConfig
from eagle3_jax.engine.programs.packing import empty_chunk
from eagle3_jax.engine.programs.program import ProgramKind
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows, pack_sampling
from eagle3_jax.speculative.method import Widths
from eagle3_jax.speculative.state import DecodeState
from eagle3_tools.bench.common.engine_programs import EnginePrograms

PAGES = {slot: tuple(range(1 + slot, 25, 4)) for slot in range(4)}
"""Six pages of each slot, interleaved: 24 tokens a sequence at pages of 4."""


def one_row(
    temperature: float = 0.0, seed: int = 0, stop_ids: Sequence[int] = (), min_len: int = 0
) -> SamplingRows:
    """Sampling options [1] of one sequence."""
    row = pack_sampling(SamplingParams(temperature=temperature), seed, min_len, stop_ids)
    return jax.tree.map(jnp.asarray, row)


class Lab(EnginePrograms):
    """Slots 0..3 with pages of their own; slot 4 pads."""

    def prefill(
        self,
        slot: int,
        ids: Sequence[int],
        options: SamplingRows,
        *,
        chunks: Sequence[int] | None = None,
        max_len: int = 24,
        num_drafts: int | None = None,
    ) -> list[int]:
        """Feeds a prompt in chunks of the given lengths; returns the report of the last."""
        size = self.config.prefill_chunk
        lengths = chunks or [min(size, len(ids) - at) for at in range(0, len(ids), size)]
        start, report = 0, None
        for length in lengths:
            chunk = empty_chunk(self.config)
            known = list(ids[start : start + length + 1])
            chunk.tokens[: len(known)] = known
            chunk.page_table[0, : len(PAGES[slot])] = PAGES[slot]
            k = self.config.num_speculative_tokens
            chunk = replace(
                chunk,
                start=np.int32(start),
                length=np.int32(length),
                last=np.bool_(start + length == len(ids)),
                slot=np.int32(slot),
                max_len=np.int32(max_len),
                num_drafts=np.int32(k if num_drafts is None else num_drafts),
                options=options,
            )
            report = self.run(ProgramKind.PREFILL, chunk)
            start += length
        assert report is not None
        return np.asarray(report)[0].tolist()

    def round(self, slots: Sequence[int], widths: Widths | None = None) -> np.ndarray:
        """One round over these slots, padded to the bucket; returns their reports."""
        bucket = self.config.buckets[-1]
        padded = [*slots, *[self.config.max_num_seqs] * (bucket - len(slots))]
        table = np.zeros((bucket, self.config.pages_per_seq), np.int32)
        for row, slot in enumerate(slots):
            table[row, : len(PAGES[slot])] = PAGES[slot]
        inputs = np.asarray(padded, np.int32), table
        return np.asarray(self.run(ProgramKind.ROUND, *inputs, widths=widths))[: len(slots)]

    def edit(self, change: Callable[[DecodeState], DecodeState]) -> None:
        """Replaces the state, which stays where it lies."""
        places = jax.tree.map(lambda array: array.sharding, self.state)
        self.state = jax.device_put(change(self.state), places)

    def snapshot(self) -> DecodeState:
        """The state as NumPy arrays: the next program will take the device's own."""
        return jax.tree.map(lambda x: np.array(x), self.state)

    def target_rows(self, slot: int, length: int) -> np.ndarray:
        """KV [layers, length, latent] of a slot's first positions."""
        return np.stack([gather(pool, slot, length) for pool in self.state.target_pools])

    def draft_rows(self, slot: int, length: int) -> np.ndarray:
        """Keys and values [2, length, heads, head_dim] of a slot's first positions."""
        return np.stack([gather(pool, slot, length) for pool in self.state.draft_pools])


PROMPTS = [[(17 * slot + 7 * i + 1) % VOCAB for i in range(3 + 2 * slot)] for slot in range(4)]
OPTIONS = [one_row(), one_row(0.6, seed=1), one_row(1.0, seed=2), one_row(1.0, seed=3)]
"""Four sequences of different lengths: one greedy, three sampled."""


def prefilled(target: Target, draft: Eagle3Draft, config: EngineConfig, max_len: int = 24) -> Lab:
    """PROMPTS in the four slots."""
    lab = Lab(target, draft, config)
    for slot, prompt in enumerate(PROMPTS):
        lab.prefill(slot, prompt, OPTIONS[slot], max_len=max_len)
    return lab


def run_rounds(lab: Lab, rounds: int) -> tuple[list[list[int]], list[list[int]]]:
    """Rounds over all slots; returns each slot's tokens (prompt included) and accepted counts."""
    firsts = lab.snapshot().slots.verified_tokens[:, 0].tolist()
    tokens = [[*prompt, first] for prompt, first in zip(PROMPTS, firsts, strict=False)]
    accepted: list[list[int]] = [[], [], [], []]
    width = lab.config.num_speculative_tokens + 1
    for _ in range(rounds):
        for slot, row in enumerate(lab.round(range(4))):
            tokens[slot] += row[: row[width]].tolist()
            accepted[slot].append(int(row[width]) - 1)
    return tokens, accepted


def gather(pool: KVPool, slot: int, length: int) -> np.ndarray:
    """The rows of a slot's first positions, in order."""
    rows = np.array(rows_and_scale(pool)[0])[list(PAGES[slot])]
    return rows.reshape(-1, *pool.shape[2:])[:length]


def true_rows(lab: Lab, tokens: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Fresh KV of a whole sequence: target rows of all tokens, draft rows of all but the last.

    The draft sees the target's true features everywhere, in one pass.
    """
    fresh = Lab(lab.target, lab.draft, lab.config)
    fresh.prefill(0, tokens, one_row(), chunks=None)
    return fresh.target_rows(0, len(tokens)), fresh.draft_rows(0, len(tokens) - 1)
