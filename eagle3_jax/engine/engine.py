"""Continuous batching: queues requests, puts prefill chunks between rounds, applies stop rules.

One thread owns an engine. A round is read only after the next one is dispatched (depth 2), so host
and device overlap. Late information costs only wasted rows: finished rows are flagged on the device
and compute on scratch.
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterable
from importlib.util import find_spec
from typing import Any, NamedTuple

from eagle3_jax.engine.acceptance import Round
from eagle3_jax.engine.choose_k import ChosenK, FixedChooser, GoodputChooser
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.grammars import interface as grammars
from eagle3_jax.engine.grammars.masking import Masking
from eagle3_jax.engine.grammars.matchers import matcher_of
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.kv.disk_tier import make_lower_tiers
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.peaks import KVPeaks
from eagle3_jax.engine.kv.transfers import OutgoingPages
from eagle3_jax.engine.page_tiers import PageBytes
from eagle3_jax.engine.programs.executor import Progress
from eagle3_jax.engine.programs.messages import Peers, PendingQuery
from eagle3_jax.engine.programs.remote import EngineInfo
from eagle3_jax.engine.programs.runner import ProgramOutput, RowReport, Runner
from eagle3_jax.engine.replicas import Replicas
from eagle3_jax.engine.request import GRAMMAR_FAILED, Request, RequestOutput
from eagle3_jax.engine.sequence import Sequence, Status
from eagle3_jax.engine.split_round import batches_of, run_split_round, with_masks
from eagle3_jax.engine.stats import Counters, EngineStats
from eagle3_jax.engine.text import Tokenizer
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel


class InFlight(NamedTuple):
    """A dispatched program whose output is not read yet.

    `members` are in the order of reports; a round makes `drafted` drafts for each and verifies at
    most `limits` of them. `timed` is a round's choice of k if the previous program was unread at
    its dispatch, so that the time between the two reads is the round's own.
    """

    output: ProgramOutput
    members: list[Sequence]
    is_round: bool
    drafted: int = 0
    limits: tuple[int, ...] | None = None
    timed: ChosenK | None = None


DISPATCH_DEPTH = 2
BETWEEN_LOOKS_S = 0.0005
"""Interval between polls of page copies if the engine has no other work."""
MOST_CHUNKS = 4
"""Maximum prefill chunks between two rounds while prompts wait for empty slots: a round of few rows
costs about as much as a full one. Running requests wait no longer than this."""


class Engine:
    """Serves requests: add() them and call step() until has_work is false."""

    def __init__(
        self,
        target: Target,
        draft: Eagle3Draft | None,
        config: EngineConfig,
        *,
        tokenizer: Tokenizer | None = None,
        eos_token_ids: Collection[int] | None = None,
        clock: Callable[[], float] | None = None,
        peers: Peers | None = None,
        kv_events: KVEventLog | None = None,
        vision: VisionModel | None = None,
    ):
        """Attach the optional parts of an engine.

        `clock` (monotonic seconds) measures rounds if adaptive. `peers` hold parts or all of the
        pair and get every program call. `kv_events` gets every change of the prefix index.
        """
        if config.adaptive and (draft is None or clock is None):
            raise ValueError("an adaptive engine needs a draft to choose k for, and a clock")
        self.config = config
        self._clock, self._last_read = clock if config.adaptive else None, 0.0
        self._chooser = GoodputChooser(config) if config.adaptive else FixedChooser(config)
        self._tokenizer = tokenizer
        self._eos = target.config.eos_token_ids if eos_token_ids is None else eos_token_ids
        self._vocab_size = target.config.vocab_size
        self.grammars: grammars.GrammarCompiler | None = None
        if config.enable_structured_outputs and config.method.rejection_sample_method == "coupled":
            self.grammars = load_grammars(tokenizer, self._vocab_size, self._eos)
        self._masking = Masking(self._vocab_size)
        images = vision and ImageLayout.of(vision, target, draft, config)
        more: Any = {"has_grammars": self.grammars is not None, "peers": peers}
        self._runner = Runner(target, draft, config, vision=vision, images=images, **more)
        tiers = make_lower_tiers(self._runner, config, kv_events, alone=peers is None)
        self._replicas = Replicas(config, tiers, kv_events, images)
        self._sequences: dict[str, Sequence] = {}
        self._in_flight: deque[InFlight] = deque()
        self._outputs: list[RequestOutput] = []
        self.started: list[str] = []
        """Requests whose prompts started to run in the latest step."""
        self._has_draft = draft is not None
        self._num_drafts = config.most_drafts(has_draft=self._has_draft)
        self._counters = Counters()

    def warmup(self, progress: Progress | None = None) -> None:
        """Compile every program, in peers too; nothing compiles afterwards."""
        self._runner.compile(progress)

    @property
    def info(self) -> EngineInfo:
        """Facts that an engine without devices must know to drive this one."""
        return self._runner.info

    def follow(self, messages: Iterable[bytes | PendingQuery]) -> None:
        """Run the calls of another process's engine; raise ValueError for impossible messages."""
        self._runner.follow(messages)

    def add(self, request: Request) -> None:
        """Queue a request; raise ValueError if it can never run here."""
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use")
        request.check_token_ids(self._vocab_size)
        self._replicas.first.check(request)
        matcher = matcher_of(request.sampling, request.grammar, self.grammars)
        most = self.config.max_model_len
        sequence = Sequence.of(request, self._eos, most, self._tokenizer, matcher)
        self._sequences[request.request_id] = sequence
        self._replicas.add(sequence)
        self._counters.prompt_tokens += len(request.prompt_ids)

    def cancel(self, request_id: str) -> None:
        """End a request and free its pages now; ignore unknown ids."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            sequence.finish("abort")
            self._report(sequence)

    def reset_prefix_cache(self) -> bool:
        """Forget cached pages; return False and do nothing while there are requests."""
        if self._sequences:
            return False
        self._replicas.drop_prefixes()
        return True

    @property
    def has_work(self) -> bool:
        """True if step() has something to do."""
        return any((self._sequences, self._in_flight, self._outputs, self._replicas.is_copying))

    def step(self) -> list[RequestOutput]:
        """Dispatch prefill chunks, usually one, and one round; read due outputs and return them."""
        self.started = []
        self._masking.begin_step()
        self._replicas.begin_step()
        self._preempt(self._replicas.to_preempt)
        dispatched = self._dispatch_prefill()
        for _ in range(MOST_CHUNKS - 1):
            if self._replicas.has_idle_slots:
                self._dispatch_prefill()
        dispatched |= self._dispatch_round()
        self._end_failed()
        keep = DISPATCH_DEPTH - 1 if dispatched else 0
        while self._in_flight and (not self._in_flight[0].is_round or len(self._in_flight) > keep):
            self._read_oldest()
        if not (dispatched or self._in_flight or self._outputs):
            if self._replicas.is_copying:
                time.sleep(BETWEEN_LOOKS_S)
            self._masking.wait()
        outputs, self._outputs = self._outputs, []
        return outputs

    def close(self) -> None:
        """Release the directory of pages, if any, for another engine."""
        if (disk := self._replicas.first.disk) is not None:
            disk.close()

    @property
    def host_pages(self) -> PageBytes:
        return self._runner

    @property
    def outgoing(self) -> OutgoingPages | None:
        return self._replicas.first.outgoing

    def kv_peaks(self) -> KVPeaks:
        """Return the largest magnitudes in the KV pools, without overwritten values."""
        return self._runner.executor.kv_peaks()

    def stats(self) -> EngineStats:
        """Return a snapshot of load and counters."""
        return EngineStats.of(self._replicas.schedulers, self._counters, self._num_drafts)

    def _dispatch_prefill(self) -> bool:
        """Dispatch the next chunk of each replica, except those whose masks are late."""
        chunks = self._replicas.next_chunks()
        ending = [chunk.sequence for chunk in chunks if chunk.last]
        ready, masks = with_masks(ending, self._masking, self._constrained)
        chunks = [chunk for chunk in chunks if not chunk.last or chunk.sequence in ready]
        if not chunks:
            return False
        members = [chunk.sequence for chunk in chunks]
        self.started += [s.request.request_id for s in members if not s.has_started]
        schedulers = list(map(self._replicas.of, members))
        seeing = [one.prepare_images(chunk) for one, chunk in zip(schedulers, chunks, strict=True)]
        output = self._runner.prefill(seeing, masks)
        for scheduler, chunk in zip(schedulers, chunks, strict=True):
            scheduler.chunk_dispatched(chunk)
        has_news = any(chunk.last or chunk.sequence.scores_prompt for chunk in chunks)
        # A chunk without news is read only to time the round after it.
        if has_news or (self._clock and self._in_flight):
            self._in_flight.append(InFlight(output, members, is_round=False))
        return True

    def _dispatch_round(self) -> bool:
        members = self._round_members()
        members, masks = with_masks(members, self._masking, self._constrained)
        for batch in batches_of(members, exact=self.config.exact):
            if any(sequence.matcher in masks for sequence in batch):
                drafts, limits, timed = self.config.num_speculative_tokens, None, None
                output = run_split_round(batch, masks, self._runner, self._masking)
            else:
                choice = self._chooser.choose(batch)
                drafts, limits = choice.drafts, choice.limits
                timed = choice if self._in_flight else None
                output = self._runner.round(batch, drafts, limits)
            for sequence in batch:
                sequence.rounds_in_flight += 1
                sequence.last_drafts = drafts
            drafted = drafts if self._has_draft else 0
            self._in_flight.append(InFlight(output, batch, True, drafted, limits, timed))
        return bool(members)

    def _end_failed(self) -> None:
        """End the sequences whose grammars cannot compute a next mask."""
        failures = self._masking.failures()
        for sequence in [s for s in self._sequences.values() if s.matcher in failures]:
            sequence.finish("error", f"{GRAMMAR_FAILED}: {failures[sequence.matcher]}")
            self._report(sequence)

    def _round_members(self) -> list[Sequence]:
        """Return the next round's members. If one needs masks, read everything in flight first."""
        members = self._members_with_pages()
        if not any(map(self._constrained, members)):
            return members
        while self._in_flight:
            self._read_oldest()
        return self._members_with_pages()

    def _constrained(self, sequence: Sequence) -> bool:
        """Return whether it needs masks now: always in exact mode, whatever the width of rounds."""
        exact = self.config.exact and sequence.matcher is not None
        return exact or sequence.needs_masks(self.config.width)

    def _members_with_pages(self) -> list[Sequence]:
        """Return the sequences of the next round, after preemptions for lack of pages."""
        self._preempt(self._replicas.lacks_pages)
        return self._replicas.round_members()

    def _preempt(self, find: Callable[[], Sequence | None]) -> None:
        """Preempt what `find` returns until that is None; read programs in flight first."""
        while (victim := find()) is not None:
            if self._in_flight:
                self._read_oldest()
            else:
                self._replicas.of(victim).preempt(victim)
                self._masking.discard(victim.matcher)

    def _read_oldest(self) -> None:
        program = self._in_flight.popleft()
        rows = self._runner.read(program.output)
        if self._clock:
            now = self._clock()
            if program.timed is not None:
                self._chooser.observe_time(program.timed, now - self._last_read)
            self._last_read = now
        limits = program.limits or [program.drafted] * len(program.members)
        for sequence, limit, row in zip(program.members, limits, rows, strict=False):
            sequence.rounds_in_flight -= program.is_round
            alive = sequence.status is not Status.FINISHED
            if alive and sequence.scores_prompt and row.prompt_logprobs is not None:
                sequence.score_prompt(row.prompt_logprobs)
            if alive and row.token_ids:
                self._commit(sequence, row, program.is_round, program.drafted, limit)
            elif program.is_round:
                self._counters.skipped_finished += program.drafted

    def _commit(
        self, sequence: Sequence, row: RowReport, is_round: bool, drafted: int, limit: int
    ) -> None:
        replayed = sequence.replay > 0
        if is_round:
            # The round began by writing final draft KV to the rows below its length.
            self._replicas.of(sequence).prefixes.publish(sequence, sequence.kv_len)
            sequence.kv_len += len(row.token_ids)
        copies_from = row.room - row.looked_up if row.looked_up else len(row.token_ids)
        kept = sequence.commit(row.token_ids, row.logprobs, copies_from)
        self._counters.generation_tokens += kept
        if is_round and not replayed:
            accepted = len(row.token_ids) - 1
            sequence.copies = row.looked_up > 0 and accepted >= max(drafted, 1)
            if row.looked_up:
                drafted = limit = row.room
            wanted = sequence.wanted_drafts(limit)
            kind = Round(drafted, wanted, row.verified, accepted, kept, row.looked_up)
            self._chooser.observe_acceptance(sequence, row.verified, accepted)
            sequence.rounds.append(kind)
            self._counters.rounds[kind] += 1
        self._report(sequence)

    def _report(self, sequence: Sequence) -> None:
        """Queue the sequence's output, and remove a finished sequence."""
        output = sequence.output()
        if sequence.status is Status.FINISHED:
            self._replicas.of(sequence).remove(sequence)
            self._masking.discard(sequence.matcher)
            del self._sequences[sequence.request.request_id]
        if output is not None:
            self._outputs.append(output)


def load_grammars(
    tokenizer: object, vocab_size: int, eos_token_ids: Collection[int]
) -> grammars.GrammarCompiler | None:
    """Return grammars over this tokenizer; None without llguidance, token bytes or an EOS id."""
    if (
        find_spec("llguidance") is None
        or not eos_token_ids
        or not isinstance(tokenizer, grammars.GrammarTokenizer)
    ):
        return None
    from eagle3_jax.engine.grammars.llguidance_grammars import LLGuidanceGrammars

    return LLGuidanceGrammars(tokenizer, vocab_size, eos_token_ids)
