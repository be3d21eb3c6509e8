"""The host's side of the only seam between host and device: packs what requests need into
program calls, makes them here and in peers, and reads what programs put out."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.calls import divide
from eagle3_jax.engine.images.layout import ImageLayout, NewImage
from eagle3_jax.engine.kv.tiers.tier import COPIED_PAGES
from eagle3_jax.engine.logprob_rows import LogprobRows
from eagle3_jax.engine.programs.call import CallFormat, Peers, ProgramCall
from eagle3_jax.engine.programs.choice import ProgramChoice
from eagle3_jax.engine.programs.executor import Executor, Progress
from eagle3_jax.engine.programs.logit_controls_packing import pack_controls
from eagle3_jax.engine.programs.packing import pack_chunk, pack_page_table
from eagle3_jax.engine.programs.page_store import NO_SLOT
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_jax.engine.scheduler import ChunkPlan
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.sampling.logprobs import Logprobs
from eagle3_jax.sampling.token_mask import open_masks
from eagle3_jax.speculative.drafts import Drafts


class ProgramOutput(NamedTuple):
    """What a dispatched program will put out: a report a row; logprobs where somebody asked."""

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
    """The first half of a round under way: its slots and page table, and the drafts' ids."""

    batch: tuple[np.ndarray, np.ndarray]
    draft_ids: jax.Array | np.ndarray


class Runner:
    """Chooses and packs programs for sequences; its executor and its peers' run them."""

    def __init__(
        self,
        target: Target,
        draft: Eagle3Draft | None,
        config: EngineConfig,
        *,
        has_grammars: bool = False,
        peers: Peers | None = None,
        vision: VisionModel | None = None,
        images: ImageLayout | None = None,
    ):
        """vision: encodes images, which lie as `images` says."""
        self.config, self._images = config, images
        self._has_draft = draft is not None
        if config.method.tree and draft is None:
            raise ValueError(f"eagle_topk {config.eagle_topk} needs a draft to grow trees")
        seeing: Any = {"vision": vision, "images": images}
        self.executor = Executor(target, draft, config, has_grammars=has_grammars, **seeing)
        self._format = CallFormat(self.executor.programs, self.executor.input_shapes)
        self._peers = peers
        self._vocab_size = target.config.vocab_size
        self._padding_slot = config.max_num_seqs
        self._choice = ProgramChoice(config)

    def compile(self, progress: Progress | None = None) -> None:
        """Compiles every program, here and in peers; without this, each is compiled when it first
        runs."""
        self.executor.compile(progress)
        if self._peers:
            self._peers.await_compiled()

    def follow(self, messages: Iterable[bytes]) -> None:
        """Makes the calls that another process's runner sends, until there are no more.

        Waits for each program behind the next one's dispatch, as whoever reads its report does.
        """
        before: tuple[Any, ...] = ()
        for message in messages:
            outputs = self.executor.run(self._format.decode(message))
            jax.block_until_ready(before)
            before = outputs

    def prefill(self, chunk: ChunkPlan, mask: np.ndarray | None = None) -> ProgramOutput:
        """Dispatches one chunk, behind the encoding of its new images; returns its output, to be
        read later.

        mask [words]: of the token that a prompt's last chunk samples, where a grammar allows only
        some.
        """
        if chunk.new_images:
            self._encode(chunk.new_images)
        drafts = self.config.num_speculative_tokens if self._has_draft else 0
        packed, sequence = pack_chunk(chunk, self.config, drafts), chunk.sequence
        program = self._choice.prefill_for(chunk, masked=mask is not None)
        if program.takes_controls:
            masks = self.open_masks(1, 1)[0] if mask is None else mask[None]
            logit_controls = pack_controls(sequence, self._vocab_size)
            packed = replace(packed, logit_controls=logit_controls, mask=masks)
        return self._dispatch(program, [sequence], packed)

    def _encode(self, new: Sequence[NewImage]) -> None:
        """Dispatches the encoding of these images into the rows that were given to them."""
        assert self._images is not None, "an engine without vision has no images"
        for parts, size in divide(new, self._images, exact=self.config.exact):
            self._run(Program(ProgramKind.ENCODE, size), self._images.pack(parts, size))

    def round(self, members: Sequence[EngineSequence], drafts: int) -> ProgramOutput:
        """Dispatches one round of `drafts` drafts over these sequences; returns its output, to be
        read later.

        Only an engine that chooses k has programs for more than one number of drafts.
        """
        program = self._choice.program_for(members, drafts)
        assert program.batch is not None, "rounds have a batch"
        return self._dispatch(program, members, *self._batch(members, program.batch))

    def propose(self, members: Sequence[EngineSequence], masks: np.ndarray) -> Proposal:
        """Dispatches the first half of a round over these sequences, with masks [batch, 1, words]
        of the first drafts."""
        bucket = masks.shape[0]
        batch = self._batch(members, bucket)
        if self._has_draft:
            program = Program(ProgramKind.PROPOSE, bucket)
            (drafts,) = self._run(program, *batch, masks)
            drafts.ids.copy_to_host_async()
            return Proposal(batch, drafts.ids)
        return Proposal(batch, np.zeros((bucket, self.config.num_speculative_tokens), np.int32))

    def verify(
        self,
        members: Sequence[EngineSequence],
        proposal: Proposal,
        draft_ids: np.ndarray,
        masks: np.ndarray,
    ) -> ProgramOutput:
        """Dispatches the second half, with masks [batch, k+1, words]; returns its output."""
        program = Program(ProgramKind.VERIFY, masks.shape[0])
        drafts: Any = draft_ids  # NumPy stands in for device arrays until they are sent.
        return self._dispatch(program, members, *proposal.batch, Drafts(drafts), masks)

    @property
    def page_bytes(self) -> int:
        """Of a page of the cache in the host's memory, on all devices together."""
        return self.executor.pages.page_bytes

    @property
    def fingerprint(self) -> bytes:
        """Of everything that a page's numbers depend on."""
        return self.executor.page_fingerprint

    def save_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        """Dispatches copies of at most COPIED_PAGES pages as they are now to slots of the host."""
        self._run(Program(ProgramKind.SAVE_PAGES), _padded(pages, SCRATCH_PAGE), _slots(slots))

    def stage_pages(self, slots: Sequence[int]) -> None:
        """Begins to bring at most COPIED_PAGES slots to the devices."""
        self._run(Program(ProgramKind.STAGE_PAGES), _slots(slots))

    def load_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        """Dispatches copies of staged slots into pages."""
        self._run(Program(ProgramKind.LOAD_PAGES), _padded(pages, SCRATCH_PAGE), _slots(slots))

    def are_saved(self, slots: Sequence[int]) -> bool:
        """Whether these slots hold their pages."""
        return self.executor.pages.are_saved(_slots(slots))

    def are_staged(self, slots: Sequence[int]) -> bool:
        """Whether these slots have reached the devices."""
        return self.executor.pages.are_staged(_slots(slots))

    def bytes_of(self, slot: int) -> np.ndarray:
        """What a slot of this process's host holds, uint8[page_bytes]; any thread may ask."""
        return self.executor.pages.bytes_of(slot)

    def fill(self, slot: int, data: np.ndarray) -> None:
        """Puts a page into a slot of this process's host."""
        self.executor.pages.fill(slot, data)

    @staticmethod
    def read_drafts(proposal: Proposal) -> np.ndarray:
        """Waits for the drafts [batch, k]; the copy is the caller's to change."""
        return np.array(jax.device_get(proposal.draft_ids))

    def open_masks(self, batch: int, rows: int) -> np.ndarray:
        """Masks [batch, rows, words] that allow every token."""
        return open_masks(self._vocab_size, batch, rows)

    @staticmethod
    def read(output: ProgramOutput) -> list[RowReport]:
        """Waits for a program and reads what it put out: the one device-to-host transfer of a round
        that nobody asks for logprobs.

        A prefill reports [token, committed], a round of k drafts [k+1 tokens, committed, verified].
        """
        rows, logprobs = jax.device_get(output)
        if rows.shape[1] == 2:
            reports = [RowReport([int(token)][: int(count)], 0) for token, count in rows]
        else:
            reports = [RowReport(row[: row[-2]].tolist(), int(row[-1])) for row in rows]
        return _with_logprobs(reports, logprobs) if logprobs else reports

    def _batch(
        self, members: Sequence[EngineSequence], bucket: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Slots and page table of these sequences, padded to the bucket."""
        slots = np.full((bucket,), self._padding_slot, np.int32)
        slots[: len(members)] = [sequence.slot for sequence in members]
        return slots, pack_page_table(members, bucket, self.config)

    def _dispatch(
        self, program: Program, members: Sequence[EngineSequence], *inputs: object
    ) -> ProgramOutput:
        """Dispatches a program; its logprobs are for those members who want some."""
        rows, logprobs = self._run(program, *inputs)
        scores_prompt = program.kind is ProgramKind.SCORING_PREFILL
        asked = scores_prompt or any(sequence.wants_logprobs for sequence in members)
        output = ProgramOutput(rows, logprobs if asked else None)
        for array in jax.tree.leaves(output):
            array.copy_to_host_async()
        return output

    def _run(self, program: Program, *inputs: object) -> tuple[Any, ...]:
        """What the program returns besides the new state; peers get the call first."""
        call = ProgramCall(program, inputs)
        if self._peers:
            self._peers.send(self._format.encode(call))
        return self.executor.run(call)


def _padded(numbers: Sequence[int], nothing: int) -> np.ndarray:
    """As many as a program copies."""
    return np.array([*numbers, *[nothing] * (COPIED_PAGES - len(numbers))], np.int32)


def _slots(slots: Sequence[int]) -> np.ndarray:
    return _padded(slots, NO_SLOT)


def _with_logprobs(reports: list[RowReport], logprobs: Logprobs) -> list[RowReport]:
    """The rows' reports with their logprobs, read from the device."""

    def of_row(row: int) -> list[LogprobRows | None]:
        return [scored and LogprobRows.of_row(scored, row) for scored in logprobs]

    return [RowReport(*report[:2], *of_row(row)) for row, report in enumerate(reports)]
