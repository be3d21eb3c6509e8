"""Decides who runs: admission, prefill order, page allocation, preemption. Computes nothing."""

from array import array
from collections import deque
from dataclasses import dataclass

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.prefix_cache import PrefixCache
from eagle3_jax.engine.kv.tiers.tier import COPIED_PAGES, KeyedPage, Tier
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

    def __init__(
        self, config: EngineConfig, tier: Tier | None = None, kv_events: KVEventLog | None = None
    ):
        """tier: keeps pages that the cache has no room for. kv_events: gets what changes of the
        prefix index."""
        self.config = config
        self.tier = tier
        self.pages = PagePool(config.pool_pages, kv_events, has_tier=tier is not None)
        self.prefixes = PrefixCache(self.pages, config, tier, kv_events)
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
            if self.tier is not None:
                self.tier.forget(self.pages.keys_of(sequence.pages))
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

    @property
    def has_copies(self) -> bool:
        """Whether pages are on their way to or from the tier, or could be."""
        return self.tier is not None and (self.tier.is_busy or self.pages.has_unsaved)

    def go_on_with_copies(self) -> None:
        """Lets those whose pages have come begin, and saves pages nobody holds."""
        if self.tier is None:
            return
        for page in self.tier.done():
            self.pages.arrived(page)
        for sequence in self.admitted:
            if sequence.status is Status.LOADING and not self.pages.awaits(sequence.pages):
                sequence.status = Status.PREFILLING
        self._save_unsaved()

    def _save_unsaved(self) -> None:
        """As many as may be on their way at a time; the oldest, which are the next to go."""
        while self.tier is not None and self.tier.can_save:
            unsaved = self.pages.oldest_unsaved(COPIED_PAGES)
            kept = self.tier.save([KeyedPage(*page) for page in unsaved]) if unsaved else []
            if not kept:
                return
            self.pages.mark_saved(kept)

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
        if not self._give_first_pages(sequence):
            return None
        self.prefixes.count(sequence)
        self.waiting.popleft()
        self.admitted.append(sequence)
        sequence.slot = self._free_slots.pop()
        loading = self.pages.awaits(sequence.pages)
        sequence.status = Status.LOADING if loading else Status.PREFILLING
        return None if loading else sequence

    def _give_first_pages(self, sequence: Sequence) -> bool:
        """Pages for its prompt and first rounds, those with the prompt's beginning among them: from
        the cache, or begun to be loaded from the tier. False, and none taken, where there are not
        enough, or more could be had without loss soon."""
        keys = self.prefixes.find(sequence)
        here = [key for key in keys if self.pages.knows(key)]
        shared = self.pages.share(here)
        missing = self._pages_wanted(sequence) - len(shared)
        waits = missing > self.pages.disposable and self.has_copies
        taken = None if waits else self.pages.take(missing)
        if taken is None:
            self.pages.give_back(shared)
            return False
        fresh, known = iter(taken), dict(zip(here, shared, strict=True))
        below = [KeyedPage(key, next(fresh)) for key in keys if key not in known]
        for key, page in below:
            self.pages.expect(page, key)
        known |= {key: page for key, page in below}
        sequence.pages = array("i", [*(known[key] for key in keys), *fresh])
        self.prefixes.reused(sequence, keys, {page.key for page in below})
        if self.tier is not None and below:
            self.tier.load(below)
            sequence.loaded_tokens = len(below) * self.config.page_tokens
        return True

    def _pages_wanted(self, sequence: Sequence) -> int:
        """For the rows of its next two rounds (the dispatch depth)."""
        known = max(sequence.kv_len, len(sequence.prefill_ids))
        rows = self.config.rows_ahead(known, sequence.limit)
        return -(-rows // self.config.page_tokens)

    def _cover(self, sequence: Sequence) -> bool:
        """Pages for the rows of its next two rounds."""
        missing = self._pages_wanted(sequence) - len(sequence.pages)
        if missing <= 0:
            return True
        if missing > self.pages.disposable:
            self._save_unsaved()
        taken = self.pages.take(missing)
        sequence.pages.extend(taken or [])
        return taken is not None

    def _release(self, sequence: Sequence) -> None:
        self.admitted.remove(sequence)
        self._give_back_pages(sequence)
        self._free_slots.append(sequence.slot)

    def _give_back_pages(self, sequence: Sequence) -> None:
        self.pages.give_back(sequence.pages)
        sequence.pages, sequence.num_published, sequence.num_prefilled = array("i"), 0, 0
