"""Host side of the device interface: packs sequences into program calls and reads outputs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from eagle3_jax.cache import SCRATCH_PAGE
from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.grammars.masking import Masks
from eagle3_jax.engine.images.layout import ImageLayout, NewImage, divide
from eagle3_jax.engine.logprob_rows import LogprobRows
from eagle3_jax.engine.page_tiers import COPIED_PAGES
from eagle3_jax.engine.programs.choice import ProgramChoice, places
from eagle3_jax.engine.programs.executor import Executor, Progress
from eagle3_jax.engine.programs.follower import follow
from eagle3_jax.engine.programs.messages import CallFormat, Peers, PendingQuery, ProgramCall
from eagle3_jax.engine.programs.packing import (
    empty_chunk,
    pack_chunk,
    pack_controls,
    pack_history,
    pack_page_table,
)
from eagle3_jax.engine.programs.page_store import NO_SLOT
from eagle3_jax.engine.programs.program import Program, ProgramKind
from eagle3_jax.engine.programs.remote import Devices, EngineInfo, RemoteExecutor
from eagle3_jax.engine.sequence import Sequence as EngineSequence
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.sampling.logprobs import Logprobs
from eagle3_jax.sampling.token_mask import open_masks
from eagle3_jax.speculative.logit_control_rows import no_controls
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.round_state import LOOKED_UP
from eagle3_jax.speculative.state import PrefillChunk
from eagle3_jax.speculative.tree import HostTree, Tree, chains_as_trees
from pallas_kernels.dispatch import candidates, prefer


class ProgramOutput(NamedTuple):
    """Outputs of a dispatched program: one report per row, and logprobs if requested.

    `places` holds the row of each sequence.
    """

    rows: jax.Array
    logprobs: Logprobs | None
    places: Sequence[int]


class RowReport(NamedTuple):
    """Tokens that one program committed for one sequence, and the drafts it verified.

    The program had room for `room` drafts, of which the last `looked_up` were looked up. `logprobs`
    are those of the tokens, `prompt_logprobs` those of the token after each chunk row.
    """

    token_ids: list[int]
    verified: int
    room: int = 0
    looked_up: int = 0
    logprobs: LogprobRows | None = None
    prompt_logprobs: LogprobRows | None = None


def read_output(output: ProgramOutput) -> list[RowReport]:
    """Wait for a program and read the outputs of its sequences.

    This is a round's only device-to-host transfer if logprobs are not requested. A prefill reports
    [token, committed], a round of k drafts [k+1 tokens, committed, verified] (commit_batch).
    """
    rows, logprobs = jax.device_get((output.rows, output.logprobs))
    if rows.ndim > 2:  # outputs of all replicas
        rows, logprobs = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), (rows, logprobs))
    report = _prefill_report if rows.shape[1] == 2 else _round_report
    reports = [report(rows[place]) for place in output.places]
    return _with_logprobs(reports, output.places, logprobs) if logprobs else reports


def _prefill_report(row: np.ndarray) -> RowReport:
    return RowReport(row[: row[1]].tolist(), 0)


def _round_report(row: np.ndarray) -> RowReport:
    looked_up, verified = divmod(int(row[-1]), LOOKED_UP)
    return RowReport(row[: row[-2]].tolist(), verified, len(row) - 3, looked_up)


def _with_logprobs(
    reports: list[RowReport], places: Sequence[int], logprobs: Logprobs
) -> list[RowReport]:
    def of_row(row: int) -> list[LogprobRows | None]:
        return [scored and LogprobRows.of_row(scored, row) for scored in logprobs]

    pairs = zip(reports, places, strict=True)
    return [RowReport(*report[:4], *of_row(place)) for report, place in pairs]


class Proposal(NamedTuple):
    """A dispatched first half of a round: slots, page table and drafts.

    With several replicas, arrays have a leading axis of replicas.
    """

    batch: tuple[np.ndarray, np.ndarray]
    drafts: Drafts | Tree


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
        """`vision` encodes images, whose layout is `images`."""
        self.config, self._images = config, images
        self._has_draft = draft is not None
        if config.method.tree and draft is None:
            raise ValueError(f"eagle_topk {config.eagle_topk} needs a draft model, got none")
        self.executor: Executor
        if peers and isinstance(peers, Devices):
            has: Any = {"has_draft": draft is not None, "has_grammars": has_grammars}
            vocab_size = target.config.vocab_size
            stands_in: Any = RemoteExecutor(config, vocab_size, peers, **has, images=images)
            self.executor = stands_in
        else:
            seeing: Any = {"vision": vision, "images": images}
            self.executor = Executor(target, draft, config, has_grammars=has_grammars, **seeing)
        self._format = CallFormat(self.executor.programs, self.executor.input_shapes)
        self._peers = peers
        self._vocab_size = target.config.vocab_size
        self._replicas = config.data_parallel_size
        self._idle_chunk = empty_chunk(config, images=images is not None)
        self._choice = ProgramChoice(config)

    def compile(self, progress: Progress | None = None) -> None:
        """Compile every program, here and in peers; otherwise each compiles when it first runs."""
        self.executor.compile(progress)
        if self._peers:
            self._peers.await_compiled()

    def follow(self, messages: Iterable[bytes | PendingQuery]) -> None:
        """Run the calls of another process's runner until there are no more."""
        follow(self.executor, self._format.decode, messages)

    @property
    def info(self) -> EngineInfo:
        """Facts that a process driving this one must know."""
        config, executor = self.config, self.executor
        with prefer(config.kernels, config.xla_kernels):
            kernels = candidates("logits_argmax")[0]
        page_bytes = self.page_bytes if config.kv_offloading_bytes else 0
        names = tuple(map(str, executor.programs))
        return EngineInfo(config.num_pages, kernels, page_bytes, names)

    def prefill(self, chunks: Sequence[ChunkPlan], masks: Masks | None = None) -> ProgramOutput:
        """Dispatch chunks, at most one per replica, after encoding their new images.

        Returns their output for later reading. `masks` apply to tokens sampled after last chunks.
        """
        for chunk in chunks:
            if chunk.new_images:
                self._encode(chunk.new_images, chunk.sequence.replica)
        if self.config.method.lookup:
            self._write_histories([chunk.sequence for chunk in chunks if chunk.last])
        program = self._choice.prefill_for(chunks, masked=bool(masks))
        own = {chunk.sequence.replica: chunk for chunk in chunks}
        packed = [
            self._packed(program, own.get(replica), masks or {})
            for replica in range(self._replicas)
        ]
        members = [chunk.sequence for chunk in chunks]
        return self._dispatch(program, members, list(own), self._together(packed))

    def _packed(self, program: Program, chunk: ChunkPlan | None, masks: Masks) -> PrefillChunk:
        """Pack a replica's chunk, or a dummy chunk, for the program."""
        drafts = self.config.most_drafts(has_draft=self._has_draft)
        packed = pack_chunk(chunk, self.config, drafts) if chunk else self._idle_chunk
        if not program.takes_controls:
            return packed
        mask = masks.get(chunk.sequence.matcher) if chunk and chunk.sequence.matcher else None
        masked = self.open_masks(1, 1)[0] if mask is None else mask[None]
        size = self._vocab_size
        controls = pack_controls(chunk.sequence, size) if chunk else no_controls(size)
        return replace(packed, logit_controls=controls, mask=masked)

    def _write_histories(self, opening: Sequence[EngineSequence]) -> None:
        """Dispatch the known tokens of sequences whose slots open, at most one per replica."""
        own = {sequence.replica: sequence for sequence in opening}
        if not own:
            return
        packed = [pack_history(own.get(i), self.config) for i in range(self._replicas)]
        self._run(Program(ProgramKind.HISTORY), *self._together(packed))

    def _encode(self, new: Sequence[NewImage], replica: int) -> None:
        """Dispatch the encoding of a replica's images into their rows; other replicas idle."""
        assert self._images is not None, "an engine without vision has no images"
        for parts, size in divide(new, self._images, exact=self.config.exact):
            packed = {replica: self._images.pack(parts, size)}
            nothing = self._images.pack((), size) if self._replicas > 1 else None
            sent = self._together([packed.get(i, nothing) for i in range(self._replicas)])
            self._run(Program(ProgramKind.ENCODE, size), sent)

    def _together(self, each: Sequence[Any]) -> Any:
        return each[0] if self._replicas == 1 else jax.tree.map(lambda *x: np.stack(x), *each)

    def round(
        self, members: Sequence[EngineSequence], drafts: int, limits: Sequence[int] | None = None
    ) -> ProgramOutput:
        """Dispatch one round of `drafts` drafts and return its output for later reading.

        Only an engine that chooses k has programs for more than one number of drafts. An adaptive
        one verifies at most `limits` of each sequence's drafts.
        """
        program = self._choice.program_for(members, drafts)
        assert program.batch is not None, "rounds have a batch"
        rows = places(members, program.batch)
        inputs: tuple[np.ndarray, ...] = self._batch(members, rows, program.batch)
        if self.config.adaptive:
            most = np.full((program.batch * self._replicas,), drafts, np.int32)
            if limits is not None:
                most[rows] = limits
            inputs = *inputs, self._by_replica(most)
        return self._dispatch(program, members, rows, *inputs)

    def propose(self, members: Sequence[EngineSequence], masks: np.ndarray) -> Proposal:
        """Dispatch the first half of a round, with masks [rows, 1, words] of the first drafts."""
        bucket = len(masks) // self._replicas
        batch = self._batch(members, places(members, bucket), bucket)
        if not (self._has_draft or self.config.method.lookup):
            none: Any = np.zeros((len(masks), self.config.num_speculative_tokens), np.int32)
            return Proposal(batch, Drafts(none))
        program = Program(ProgramKind.PROPOSE, bucket, self.config.split_widths)
        (drafts,) = self._run(program, *batch, self._by_replica(masks))
        for array in jax.tree.leaves(drafts):
            array.copy_to_host_async()
        return Proposal(batch, drafts)

    def verify(
        self,
        members: Sequence[EngineSequence],
        proposal: Proposal,
        tree: HostTree,
        masks: np.ndarray,
    ) -> ProgramOutput:
        """Dispatch the second half of a round and return its output.

        Drafts are those of `read_drafts`; masks are [rows, nodes, words].
        """
        bucket = len(masks) // self._replicas
        # NumPy arrays stand in for device arrays until they are sent.
        sent: Any = jax.tree.map(self._by_replica, tree)
        chain = Drafts(sent.tokens[..., 1:], None, sent.looked_up)
        drafts = Tree(sent.tokens, sent.parents) if self.config.method.tree else chain
        inputs = *proposal.batch, drafts, self._by_replica(masks)
        program = Program(ProgramKind.VERIFY, bucket, self.config.split_widths)
        return self._dispatch(program, members, places(members, bucket), *inputs)

    @property
    def page_bytes(self) -> int:
        return self.executor.pages.page_bytes

    @property
    def fingerprint(self) -> bytes:
        return self.executor.page_fingerprint

    def save_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        """Dispatch copies of up to COPIED_PAGES pages' present contents to host slots."""
        self._run(Program(ProgramKind.SAVE_PAGES), _padded(pages, SCRATCH_PAGE), _slots(slots))

    def stage_pages(self, slots: Sequence[int]) -> None:
        """Start copying up to COPIED_PAGES slots to the devices."""
        self._run(Program(ProgramKind.STAGE_PAGES), _slots(slots))

    def load_pages(self, pages: Sequence[int], slots: Sequence[int]) -> None:
        """Dispatch copies of staged slots into pages."""
        self._run(Program(ProgramKind.LOAD_PAGES), _padded(pages, SCRATCH_PAGE), _slots(slots))

    def are_saved(self, slots: Sequence[int]) -> bool:
        return self.executor.pages.are_saved(_slots(slots))

    def are_staged(self, slots: Sequence[int]) -> bool:
        return self.executor.pages.are_staged(_slots(slots))

    def bytes_of(self, slot: int) -> np.ndarray:
        """Return the uint8[page_bytes] of a slot on this process's host. Thread-safe."""
        return self.executor.pages.bytes_of(slot)

    def fill(self, slot: int, data: np.ndarray) -> None:
        self.executor.pages.fill(slot, data)

    @staticmethod
    def read_drafts(proposal: Proposal) -> HostTree:
        """Wait for the drafts; the caller may change the returned copy."""
        read: Any = jax.device_get(proposal.drafts)
        of_replicas = read[0].ndim > 2
        read = jax.tree.map(lambda x: np.concatenate(x) if of_replicas else np.array(x), read)
        if isinstance(proposal.drafts, Tree):
            return HostTree(*read)
        return chains_as_trees(read.ids)._replace(looked_up=read.looked_up)

    def open_nodes(self, rows: int) -> np.ndarray:
        """Make masks [rows, nodes, words] of a round that allow every token."""
        return self.open_masks(rows, self.config.verified_rows)

    def open_masks(self, batch: int, rows: int) -> np.ndarray:
        """Make masks [batch, rows, words] that allow every token."""
        return open_masks(self._vocab_size, batch, rows)

    read = staticmethod(read_output)

    def _batch(
        self, members: Sequence[EngineSequence], rows: Sequence[int], bucket: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return slots and page table with each sequence in its row, padded to the bucket."""
        size = bucket * self._replicas
        slots = np.full((size,), self.config.max_num_seqs, np.int32)
        slots[rows] = [sequence.slot for sequence in members]
        table = pack_page_table(members, size, self.config, rows)
        return self._by_replica(slots), self._by_replica(table)

    def _by_replica(self, rows: np.ndarray) -> np.ndarray:
        """Add the axis of replicas that programs expect."""
        return rows if self._replicas == 1 else rows.reshape(self._replicas, -1, *rows.shape[1:])

    def _dispatch(
        self,
        program: Program,
        members: Sequence[EngineSequence],
        places: Sequence[int],
        *inputs: object,
    ) -> ProgramOutput:
        """Dispatch a program; keep its logprobs if a member wants them."""
        rows, logprobs = self._run(program, *inputs)
        scores_prompt = program.kind is ProgramKind.SCORING_PREFILL
        asked = scores_prompt or any(sequence.wants_logprobs for sequence in members)
        output = ProgramOutput(rows, logprobs if asked else None, places)
        for array in jax.tree.leaves(output[:2]):
            array.copy_to_host_async()
        return output

    def _run(self, program: Program, *inputs: object) -> tuple[Any, ...]:
        """Send the call to peers, run it here, and return its outputs besides the new state."""
        call = ProgramCall(program, inputs)
        if self._peers:
            self._peers.send(self._format.encode(call))
        return self.executor.run(call)


def _padded(numbers: Sequence[int], nothing: int) -> np.ndarray:
    """Pad to the number of pages that a program copies."""
    return np.array([*numbers, *[nothing] * (COPIED_PAGES - len(numbers))], np.int32)


def _slots(slots: Sequence[int]) -> np.ndarray:
    return _padded(slots, NO_SLOT)
