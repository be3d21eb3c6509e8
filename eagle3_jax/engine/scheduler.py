"""Decides who runs: admission, prefill order, page allocation, preemption. Computes nothing."""

from collections import deque
from dataclasses import dataclass

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.prefix_cache import PrefixCache
from eagle3_jax.engine.sequence import Sequence, Status


@dataclass(frozen=True)
class ChunkPlan:
    """The next chunk of a sequence's prompt: [start, start + length)."""

    sequence: Sequence
    start: int
    length: int

    @property
    def last(self) -> bool:
        """Whether the prompt ends with this chunk."""
        return self.start + self.length == len(self.sequence.prefill_ids)


class Scheduler:
    """First come, first served, over a fixed number of slots and pages."""

    def __init__(self, config: EngineConfig, kv_events: KVEventLog | None = None):
        self.config = config
        self.pages = PagePool(config.pool_pages, kv_events)
        self.prefixes = PrefixCache(self.pages, config, kv_events)
        self.waiting: deque[Sequence] = deque()
        self.admitted: list[Sequence] = []  # oldest first: the last is the first to be preempted
        self.num_preemptions = 0
        self._free_slots = list(range(config.max_num_seqs))[::-1]

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forgets a finished sequence and takes back its slot and pages."""
        if sequence.spoiled:
            # Shared ones too: rows that are not finite would fail whoever finds them.
            self.pages.forget(sequence.pages)
        if sequence in self.admitted:
            self._release(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def next_chunk(self) -> ChunkPlan | None:
        """Goes on with the prompt under way; when there is none, admits the next if it fits.

        Nobody is admitted earlier, so that a prompt finds all the pages of those before it.
        """
        under_way = (s for s in self.admitted if s.status is Status.PREFILLING)
        sequence = next(under_way, None) or self._admit()
        if sequence is None:
            return None
        start = sequence.num_prefilled
        length = min(len(sequence.prefill_ids) - start, self.config.prefill_chunk)
        return ChunkPlan(sequence, start, length)

    @property
    def leaves_slots_idle(self) -> bool:
        """Whether prompts wait although there are slots for them."""
        return bool(self.waiting and self._free_slots)

    def chunk_dispatched(self, chunk: ChunkPlan) -> None:
        """Notes a dispatched chunk; after the last one the sequence joins the rounds."""
        sequence = chunk.sequence
        sequence.num_prefilled += chunk.length
        # The draft's row of the prompt's last token is written by the first round.
        self.prefixes.publish(sequence, sequence.num_prefilled - chunk.last)
        if chunk.last:
            sequence.kv_len = sequence.num_prefilled
            sequence.status = Status.RUNNING

    def round_members(self) -> list[Sequence]:
        """Sequences a round would advance."""
        running = [s for s in self.admitted if s.status is Status.RUNNING]
        return [s for s in running if not s.surely_finished]

    def uncovered(self, members: list[Sequence]) -> Sequence | None:
        """Gives every member the pages of its next two rounds; the first that can't get them."""
        return next((s for s in members if not self._cover(s)), None)

    def preempt_youngest(self) -> Sequence:
        """Takes slot and pages from the sequence admitted last; it waits in front."""
        victim = self.admitted[-1]
        self._release(victim)
        victim.rewind(exact=self.config.exact)
        self.waiting.appendleft(victim)
        self.num_preemptions += 1
        return victim

    def _admit(self) -> Sequence | None:
        """Gives the next in the queue a slot and pages, if there are enough."""
        if not (self.waiting and self._free_slots):
            return None
        sequence = self.waiting[0]
        self.prefixes.reuse(sequence)
        if not self._cover(sequence):
            self._give_back_pages(sequence)
            return None
        self.prefixes.count(sequence)
        self.waiting.popleft()
        self.admitted.append(sequence)
        sequence.slot, sequence.status = self._free_slots.pop(), Status.PREFILLING
        return sequence

    def _cover(self, sequence: Sequence) -> bool:
        """Pages for the rows of its next two rounds (the dispatch depth)."""
        known = max(sequence.kv_len, len(sequence.prefill_ids))
        rows = self.config.rows_ahead(known, sequence.limit)
        missing = -(-rows // self.config.page_tokens) - len(sequence.pages)
        if missing <= 0:
            return True
        taken = self.pages.take(missing)
        sequence.pages.extend(taken or [])
        return taken is not None

    def _release(self, sequence: Sequence) -> None:
        self.admitted.remove(sequence)
        self._give_back_pages(sequence)
        self._free_slots.append(sequence.slot)

    def _give_back_pages(self, sequence: Sequence) -> None:
        self.pages.give_back(sequence.pages)
        sequence.pages, sequence.num_published, sequence.num_prefilled = [], 0, 0
