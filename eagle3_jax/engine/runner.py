"""The only seam between host and device: packs host plans, runs programs, reads reports."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.config import default_aux_layer_ids
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.packing import empty_chunk, pack_chunk
from eagle3_jax.engine.programs import Pair, compile_program, flatten_model, shapes_of
from eagle3_jax.engine.scheduler import ChunkPlan
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.speculative.state import DecodeState, empty_slots

Progress = Callable[[str, int, int], None]
"""Called with (program, done, total) as programs compile."""


class RowReport(NamedTuple):
    """What one program committed for one sequence: tokens, and how many drafts it verified."""

    token_ids: list[int]
    verified: int


class Runner:
    """Holds weights and decode state on the device and runs one program at a time on them."""

    def __init__(self, target: KimiTarget, draft: Eagle3Draft | None, config: EngineConfig):
        self.config = config
        self._has_draft = draft is not None
        # Plain exact decoding captures aux states too: its program must be the speculative one's.
        capture = draft.config.aux_layer_ids if draft else ()
        if config.exact and draft is None:
            capture = default_aux_layer_ids(target.config.num_hidden_layers)
        self._target, target_structure = flatten_model(target)
        self._draft, draft_structure = flatten_model(draft) if draft else ((), None)
        self._pair = Pair(target_structure, draft_structure, capture)
        self._state = initial_state(target, draft, config, len(capture))
        self._padding_slot = config.max_num_seqs
        self._uploaded: dict[int, tuple[np.ndarray, np.ndarray, list[jax.Array]]] = {}
        self._programs: dict[str | int, Callable] = {}

    def compile(self, progress: Progress | None = None) -> None:
        """Compiles every program this runner will ever run."""
        names: list[str | int] = ["prefill", *self.config.buckets]
        for done, name in enumerate(names):
            if progress:
                progress(f"round of {name}" if isinstance(name, int) else name, done, len(names))
            self._programs[name] = self._compile(name)
        if progress:
            progress("ready", len(names), len(names))

    def prefill(self, chunk: ChunkPlan) -> jax.Array:
        """Dispatches one chunk; returns the report to read later."""
        drafts = self.config.num_speculative_tokens if self._has_draft else 0
        return self._run("prefill", jax.device_put(pack_chunk(chunk, self.config, drafts)))

    def round(self, members: Sequence[EngineSequence]) -> jax.Array:
        """Dispatches one round over these sequences; returns the report to read later."""
        bucket = self.config.bucket_for(len(members))
        slots = np.full((bucket,), self._padding_slot, np.int32)
        table = np.full((bucket, self.config.pages_per_seq), SCRATCH_PAGE, np.int32)
        for row, sequence in enumerate(members):
            slots[row] = sequence.slot
            table[row, : len(sequence.pages)] = sequence.pages
        return self._run(bucket, *self._upload(bucket, slots, table))

    @staticmethod
    def read(report: jax.Array) -> list[RowReport]:
        """Waits for a program and reads its report: the one device-to-host transfer of a round.

        A prefill reports [token, committed], a round [k+1 tokens, committed, verified].
        """
        rows = jax.device_get(report)
        if rows.shape[1] == 2:
            return [RowReport([int(token)][: int(count)], 0) for token, count in rows]
        return [RowReport(row[: row[-2]].tolist(), int(row[-1])) for row in rows]

    def _run(self, program: str | int, *inputs: object) -> jax.Array:
        execute = self._programs[program]
        self._state, report = execute(self._target, self._draft, self._state, *inputs)
        report.copy_to_host_async()
        return report

    def _upload(self, bucket: int, slots: np.ndarray, table: np.ndarray) -> list[jax.Array]:
        """Sends slots and page table; skipped while they stay what this bucket saw last."""
        known = self._uploaded.get(bucket)
        if known and np.array_equal(known[0], slots) and np.array_equal(known[1], table):
            return known[2]
        arrays = jax.device_put([slots, table])
        self._uploaded[bucket] = (slots, table, arrays)
        return arrays

    def _compile(self, name: str | int) -> Callable:
        weights = shapes_of((self._target, self._draft, self._state))
        pages, integers = self.config.pages_per_seq, jnp.int32
        if isinstance(name, int):
            slots = jax.ShapeDtypeStruct((name,), integers)
            table = jax.ShapeDtypeStruct((name, pages), integers)
            return compile_program("round", self._pair, *weights, slots, table)
        return compile_program("prefill", self._pair, *weights, shapes_of(empty_chunk(self.config)))


def initial_state(
    target: KimiTarget, draft: Eagle3Draft | None, config: EngineConfig, num_aux: int
) -> DecodeState:
    """Empty pools and finished slots (one extra for padding rows)."""
    dtype = target.embed_tokens.embedding.get_value().dtype
    pages = (config.pool_pages, config.page_size)
    latent = target.config.latent_dim
    layers = range(target.config.num_hidden_layers)
    draft_pools = ()
    if draft is not None:
        row = (draft.config.num_key_value_heads, draft.config.head_dim)
        draft_pools = tuple(jnp.zeros((*pages, *row), dtype) for _ in ("keys", "values"))
    return DecodeState(
        tuple(jnp.zeros((*pages, latent), dtype) for _ in layers),
        draft_pools,
        empty_slots(
            config.max_num_seqs + 1, config.width, num_aux * target.config.hidden_size, dtype
        ),
    )
