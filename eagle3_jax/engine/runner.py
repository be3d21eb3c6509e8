"""The only seam between host and device: packs host plans, runs programs, reads reports."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.config import default_aux_layer_ids
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.controls_packing import no_controls, pack_controls
from eagle3_jax.engine.initial_state import initial_state
from eagle3_jax.engine.kv_scales import KVPeaks, pool_peaks
from eagle3_jax.engine.logprobs import LogprobRows
from eagle3_jax.engine.packing import empty_chunk, pack_chunk
from eagle3_jax.engine.program import Program, all_programs, has_argmax
from eagle3_jax.engine.programs import Pair, compile_program, flatten_model, shapes_of
from eagle3_jax.engine.scheduler import ChunkPlan
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.logprobs import Logprobs
from eagle3_jax.mesh import mesh_of
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.speculative.drafts import Drafts
from eagle3_jax.speculative.widths import Widths
from eagle3_jax.token_mask import open_masks

Progress = Callable[[str, int, int], None]
"""Called with (program, done, total) as programs compile."""


class Report(NamedTuple):
    """What a dispatched program will tell; logprobs only where somebody asked for them."""

    rows: jax.Array
    logprobs: Logprobs | None


class RowReport(NamedTuple):
    """What one program committed for one sequence: tokens, and how many drafts it verified.

    logprobs: of the tokens. prompt_logprobs: of the prompt's tokens after each of the chunk's.
    """

    token_ids: list[int]
    verified: int
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None


class Proposal(NamedTuple):
    """The first half of a round under way: its slots and page table, and the drafts."""

    batch: list[jax.Array]
    drafts: Drafts


class Runner:
    """Holds weights and decode state on the device and runs one program at a time on them."""

    def __init__(
        self,
        target: KimiTarget,
        draft: Eagle3Draft | None,
        config: EngineConfig,
        *,
        has_grammars: bool = False,
    ):
        self.config = config
        self._has_draft = draft is not None
        self._has_grammars = has_grammars
        if config.method.tree and draft is None:
            raise ValueError(f"eagle_topk {config.eagle_topk} needs a draft to grow trees")
        # Plain exact decoding captures aux states too: its program must be the speculative one's.
        capture = draft.config.aux_layer_ids if draft else ()
        if config.exact and draft is None:
            capture = default_aux_layer_ids(target.config.num_hidden_layers)
        mesh = mesh_of(target)
        # What the host sends goes to every device of the mesh.
        self._everywhere = None if mesh is None else NamedSharding(mesh, PartitionSpec())
        self._target, target_structure = flatten_model(target, mesh)
        self._draft, draft_structure = flatten_model(draft, mesh) if draft else ((), None)
        self._pair = Pair(target_structure, draft_structure, capture, config.method, config.kernels)
        self._state = initial_state(target, draft, config, len(capture), mesh)
        self._vocab_size = target.config.vocab_size
        self._padding_slot = config.max_num_seqs
        self._widths = config.round_widths
        self._has_argmax = has_argmax(config)
        self._uploaded: dict[int, tuple[np.ndarray, np.ndarray, list[jax.Array]]] = {}
        self._programs: dict[Program, Callable] = {}

    @property
    def programs(self) -> list[Program]:
        """Every program this runner will ever run."""
        parts = {"has_draft": self._has_draft, "has_grammars": self._has_grammars}
        return all_programs(self.config, **parts)

    def compile(self, progress: Progress | None = None) -> None:
        """Compiles every program; without this, each is compiled when it first runs."""
        programs = self.programs
        for done, program in enumerate(programs):
            if progress:
                progress(str(program), done, len(programs))
            self._programs[program] = self._compile(program)
        if progress:
            progress("ready", len(programs), len(programs))

    def prefill(self, chunk: ChunkPlan) -> Report:
        """Dispatches one chunk; returns the report to read later."""
        drafts = self.config.num_speculative_tokens if self._has_draft else 0
        packed, sequence = pack_chunk(chunk, self.config, drafts), chunk.sequence
        scores = sequence.scores_prompt
        # Only a prompt's last chunk samples.
        full = scores or (chunk.last and self._needs_full(sequence))
        if full:
            mask = self.open_masks(1, 1)[0]
            if chunk.last and sequence.matcher is not None:
                sequence.matcher.fill(mask, [])
            controls = pack_controls(sequence, self._vocab_size)
            packed = replace(packed, controls=controls, mask=mask)
        argmax = not full and self._can_argmax([sequence] if chunk.last else [])
        program = Program(None, full, scores_prompt=scores, argmax=argmax)
        return self._report(program, [sequence], self._put(packed))

    def round(self, members: Sequence[EngineSequence], drafts: int) -> Report:
        """Dispatches one round of `drafts` drafts over these sequences; returns the report to read
        later. Only an engine that chooses k has programs for more than one number of drafts."""
        bucket = self.config.bucket_for(len(members))
        argmax = self._can_argmax(members)
        full = not argmax and any(self._needs_full(sequence) for sequence in members)
        widths = self._widths_for(members, drafts)
        program = Program(bucket, full, widths=widths, argmax=argmax)
        return self._report(program, members, *self._batch(members, bucket))

    def propose(self, members: Sequence[EngineSequence], masks: np.ndarray) -> Proposal:
        """Dispatches the first half of a round over these sequences, with masks [batch, 1, words]
        of the first drafts."""
        bucket = masks.shape[0]
        batch = self._batch(members, bucket)
        if self._has_draft:
            program = Program(bucket, True, "propose")
            (drafts,) = self._run(program, *batch, self._put(masks))
            drafts.ids.copy_to_host_async()
            return Proposal(batch, drafts)
        no_drafts = np.zeros((bucket, self.config.num_speculative_tokens), np.int32)
        return Proposal(batch, Drafts(self._put(no_drafts)))

    def verify(
        self,
        members: Sequence[EngineSequence],
        proposal: Proposal,
        draft_ids: np.ndarray,
        masks: np.ndarray,
    ) -> Report:
        """Dispatches the second half, with masks [batch, k+1, words]; returns the report."""
        program = Program(masks.shape[0], True, "verify")
        drafts, masks = self._put((draft_ids, masks))
        return self._report(program, members, *proposal.batch, Drafts(drafts), masks)

    @staticmethod
    def read_drafts(proposal: Proposal) -> np.ndarray:
        """Waits for the drafts [batch, k]; the copy is the caller's to change."""
        return np.array(jax.device_get(proposal.drafts.ids))

    def kv_peaks(self) -> KVPeaks:
        """Waits for all programs and looks through the pools."""
        pools = self._state.target_pools, self._state.draft_pools
        target, draft = (tuple(map(float, jax.device_get(pool_peaks(p)))) for p in pools)
        return KVPeaks(target, draft)

    def open_masks(self, batch: int, rows: int) -> np.ndarray:
        """Masks [batch, rows, words] that allow every token."""
        return open_masks(self._vocab_size, batch, rows)

    @staticmethod
    def read(report: Report) -> list[RowReport]:
        """Waits for a program and reads its report: the one device-to-host transfer of a round
        that nobody asks for logprobs.

        A prefill reports [token, committed], a round of k drafts [k+1 tokens, committed, verified].
        """
        rows, logprobs = jax.device_get(report)
        if rows.shape[1] == 2:
            reports = [RowReport([int(token)][: int(count)], 0) for token, count in rows]
        else:
            reports = [RowReport(row[: row[-2]].tolist(), int(row[-1])) for row in rows]
        return _with_logprobs(reports, logprobs) if logprobs else reports

    def _widths_for(self, members: Sequence[EngineSequence], drafts: int) -> Widths | None:
        """The narrowest round of so many drafts that reads all rows of the last one."""
        if not self.config.chooses_k:
            return None
        rows = 1 + max(sequence.last_drafts for sequence in members)
        return next(w for w in self._widths if w and w.drafts == drafts and w.first_rows >= rows)

    def _needs_full(self, sequence: EngineSequence) -> bool:
        asks = sequence.matcher is not None or sequence.wants_logprobs
        return self.config.exact or sequence.controlled or asks

    def _can_argmax(self, members: Sequence[EngineSequence]) -> bool:
        """Whether kernels choose tokens here, and nobody's options need written logits."""
        return self._has_argmax and not any(sequence.needs_logits for sequence in members)

    def _batch(self, members: Sequence[EngineSequence], bucket: int) -> list[jax.Array]:
        """Slots and page table of these sequences on the device, padded to the bucket."""
        slots = np.full((bucket,), self._padding_slot, np.int32)
        table = np.full((bucket, self.config.pages_per_seq), SCRATCH_PAGE, np.int32)
        for row, sequence in enumerate(members):
            slots[row] = sequence.slot
            table[row, : len(sequence.pages)] = sequence.pages
        return self._upload(bucket, slots, table)

    def _report(
        self, program: Program, members: Sequence[EngineSequence], *inputs: object
    ) -> Report:
        """Dispatches a program; its logprobs are for those members who want some."""
        rows, logprobs = self._run(program, *inputs)
        asked = program.scores_prompt or any(sequence.wants_logprobs for sequence in members)
        report = Report(rows, logprobs if asked else None)
        for array in jax.tree.leaves(report):
            array.copy_to_host_async()
        return report

    def _run(self, program: Program, *inputs: object) -> tuple[Any, ...]:
        """What the program returns beside the new state."""
        if program not in self._programs:
            self._programs[program] = self._compile(program)
        execute = self._programs[program]
        self._state, *outputs = execute(self._target, self._draft, self._state, *inputs)
        return tuple(outputs)

    def _upload(self, bucket: int, slots: np.ndarray, table: np.ndarray) -> list[jax.Array]:
        """Sends slots and page table; skipped while they stay what this bucket saw last."""
        known = self._uploaded.get(bucket)
        if known and np.array_equal(known[0], slots) and np.array_equal(known[1], table):
            return known[2]
        arrays = self._put([slots, table])
        self._uploaded[bucket] = (slots, table, arrays)
        return arrays

    def _put(self, sent: Any) -> Any:
        return jax.device_put(sent, self._everywhere)

    def _compile(self, program: Program) -> Callable:
        weights = shapes_of((self._target, self._draft, self._state))
        pages, integers = self.config.pages_per_seq, jnp.int32
        if program.batch is not None:
            slots = jax.ShapeDtypeStruct((program.batch,), integers)
            table = jax.ShapeDtypeStruct((program.batch, pages), integers)
            inputs = self._split_inputs(program) if program.half else ()
            inputs = (slots, table, *inputs)
            return compile_program(
                program.kind, self._pair, *weights, *inputs, widths=program.widths
            )
        chunk = empty_chunk(self.config)
        if program.full:
            controls, mask = no_controls(self._vocab_size), self.open_masks(1, 1)[0]
            chunk = replace(chunk, controls=controls, mask=mask)
        return compile_program(program.kind, self._pair, *weights, shapes_of(chunk))

    def _split_inputs(self, program: Program) -> tuple[Any, ...]:
        batch = program.batch or 0
        if program.half == "propose":
            return (shapes_of(self.open_masks(batch, 1)),)
        drafts = Drafts(jnp.zeros((batch, self.config.num_speculative_tokens), jnp.int32))
        return shapes_of((drafts, self.open_masks(batch, self.config.width)))


def _with_logprobs(reports: list[RowReport], told: Logprobs) -> list[RowReport]:
    """The rows' reports with their logprobs, read from the device."""

    def of_row(row: int) -> dict[str, LogprobRows]:
        prompt = {"prompt_logprobs": LogprobRows.of_row(told.prompt, row)} if told.prompt else {}
        return {"logprobs": LogprobRows.of_row(told.sampled, row), **prompt}

    return [report._replace(**of_row(row)) for row, report in enumerate(reports)]
