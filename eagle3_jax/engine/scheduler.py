"""Scheduling on the host: admission, prefill order, page allocation, preemption."""

from array import array
from dataclasses import replace

from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.fair_queue import FairQueue
from eagle3_jax.engine.images.encoder_cache import EncoderCache, check_images
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.kv.disk_tier import NO_TIERS, LowerTiers
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.pages import PagePool
from eagle3_jax.engine.kv.prefix_cache import PrefixCache
from eagle3_jax.engine.kv.transfers import IncomingPages, OutgoingPages, WriteThrough
from eagle3_jax.engine.page_tiers import COPIED_PAGES, KeyedPage, TierOccupancy, TokensByTier
from eagle3_jax.engine.request import Request
from eagle3_jax.engine.sequence import Sequence, Status


class Scheduler:
    """Gives sequences slots and pages: fair between clients, in order of arrival for each."""

    def __init__(
        self,
        config: EngineConfig,
        tiers: LowerTiers = NO_TIERS,
        kv_events: KVEventLog | None = None,
        images: ImageLayout | None = None,
    ):
        """`kv_events` receives changes of the prefix index; `images` is the layout of features."""
        self.config, self.images = config, images and EncoderCache(images)
        self.tier, self.disk = tier, disk = tiers
        self.pages = PagePool(config.pool_pages, kv_events, has_tier=tier is not None)
        self.prefixes = PrefixCache(self.pages, config, tier, kv_events)
        self.incoming = None if tier is None else IncomingPages(tier)
        self.outgoing = None if tier is None else OutgoingPages(tier, self.pages)
        self._writes = WriteThrough(tier, disk) if tier and disk else None
        self.waiting = FairQueue(config)
        self.admitted = self.waiting.admitted
        self.num_preemptions = 0
        self._lacks_pages = False
        self._free_slots = list(range(config.max_num_seqs))[::-1]

    def check(self, request: Request) -> None:
        """Raise ValueError if a request needs missing host memory or has images that cannot run."""
        moves = request.source is not None or request.export_as is not None
        if moves and self.tier is None:
            raise ValueError(
                "KV transfers need host memory: kv_offloading_bytes must hold a page, got 0"
            )
        exact_chunk = self.config.prefill_chunk if self.config.exact else None
        check_images(request, self.images, exact_chunk)

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence and start transfers of its prompt's pages."""
        self.waiting.append(sequence)
        self._begin_fetch(sequence)

    def _begin_fetch(self, sequence: Sequence) -> None:
        source = sequence.request.source or (self.disk and self.disk.source())
        if source is not None and self.tier is not None and self.incoming is not None:
            sequence.source = source
            keys = self.prefixes.prompt_keys(sequence)
            known = self.pages.knows, self.tier.knows
            missing = {key for key in keys if not any(knows(key) for knows in known)}
            sequence.fetched = self.incoming.begin(source, keys, missing)

    def remove(self, sequence: Sequence) -> None:
        """Remove a finished sequence and free its slot and pages."""
        if sequence.has_nonfinite_kv:
            # Shared ones too: rows that are not finite would fail every sequence that finds them.
            self._forget_below(self.pages.keys_of(sequence.pages))
            self.pages.forget(sequence.pages)
        if sequence in self.admitted:
            self._release(sequence, waits=False)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)

    def drop_prefixes(self) -> None:
        """Forget all cached pages, here and in the tiers."""
        self._forget_below(None)
        self.pages.forget_all()

    def _forget_below(self, keys: list[bytes] | None) -> None:
        """Remove these keys from tiers and transfers. With `keys=None`, remove all keys."""
        for part in filter(None, (self.outgoing, self.incoming, self.tier, self.disk)):
            part.forget(keys)

    def next_chunk(self) -> ChunkPlan | None:
        """Plan the next chunk: clients take turns with their prefill in progress or next prompt.

        A client has one prefill in progress, so that a prompt finds all pages of earlier ones.
        """
        self._lacks_pages = False
        first = self.waiting.first(self._is_ready) if self._free_slots else None
        for sequence in self.waiting.in_turn(first):
            if sequence is not first or self._admit(sequence):
                return ChunkPlan.next_of(sequence, self.config.prefill_chunk, self.images)
        return None

    def prepare_images(self, chunk: ChunkPlan) -> ChunkPlan:
        """Add the feature rows of a chunk's images, and the images to encode before it.

        The chunk must be dispatched next, because later chunks rely on these features.
        """
        if self.images is None:
            return chunk
        sequence, end = chunk.sequence, chunk.start + chunk.length
        new = tuple(self.images.assign_rows(sequence, chunk.start, end))
        rows = self.images.rows(sequence.request.images, chunk.start, chunk.length + 1)
        return replace(chunk, feature_rows=rows, new_images=new)

    @property
    def has_free_slot(self) -> bool:
        """True if one more sequence could be admitted, given pages."""
        return bool(self._free_slots)

    @property
    def has_idle_slots(self) -> bool:
        """True if prompts wait although there are free slots."""
        return bool(self.waiting and self._free_slots)

    def chunk_dispatched(self, chunk: ChunkPlan) -> None:
        """Record a dispatched chunk; after the last one the sequence joins the rounds."""
        sequence = chunk.sequence
        sequence.has_started = True
        sequence.num_prefilled += chunk.length
        self.waiting.end_turn(sequence)
        # The first round writes the draft's row of the prompt's last token.
        self.prefixes.publish(sequence, sequence.num_prefilled - chunk.last)
        if chunk.last:
            sequence.kv_len = sequence.num_prefilled
            sequence.status = Status.RUNNING
            name = sequence.request.export_as
            if name is not None and self.outgoing is not None:
                keys = sequence.page_keys[: sequence.num_published]
                self.outgoing.begin(name, keys[: self.pages.count_known(keys)])

    def round_members(self) -> list[Sequence]:
        """Return the sequences that a round would advance."""
        running = [s for s in self.admitted if s.status is Status.RUNNING]
        return [s for s in running if not s.surely_finished]

    @property
    def has_copies(self) -> bool:
        """True if pages are being copied to or from the tier, or could be saved."""
        return self.tier is not None and (self.tier.is_busy or self.pages.has_unsaved)

    @property
    def tier_occupancy(self) -> tuple[TierOccupancy, ...]:
        return tuple(tier.occupancy for tier in (self.tier, self.disk) if tier is not None)

    @property
    def is_copying(self) -> bool:
        """True if `poll_copies` has work."""
        beside = [part for part in (self.incoming, self.outgoing, self._writes) if part is not None]
        return self.has_copies or any(part.is_busy for part in beside)

    def poll_copies(self) -> None:
        """Start sequences whose pages have arrived, and save exported, then free pages."""
        if self.tier is None or self.incoming is None or self.outgoing is None:
            return
        self.incoming.poll()
        for page in self.tier.poll():
            self.pages.mark_loaded(page)
        for sequence in self.admitted:
            if sequence.status is Status.LOADING and not self.pages.are_loading(sequence.pages):
                sequence.status = Status.PREFILLING
        self.outgoing.poll()
        if self._writes is not None:
            self._writes.poll()
        self._save_unsaved()

    def _save_unsaved(self) -> None:
        """Save as many of the oldest pages, which are evicted next, as may be in flight."""
        while self.tier is not None and self.tier.can_save:
            unsaved = self.pages.oldest_unsaved(COPIED_PAGES)
            kept = self.tier.save([KeyedPage(*page) for page in unsaved]) if unsaved else []
            if not kept:
                return
            self.pages.mark_saved(kept)

    def to_preempt(self) -> Sequence | None:
        """Return the sequence that must yield its slot and pages to a waiting client, if any."""
        is_short = self._lacks_pages or not self._free_slots
        return self.waiting.to_preempt(self._is_ready) if is_short else None

    def preempt(self, victim: Sequence) -> None:
        """Take slot and pages from a sequence; it becomes the next one of its client."""
        self._release(victim, waits=True)
        victim.rewind(exact=self.config.exact)
        self._begin_fetch(victim)
        self.num_preemptions += 1

    @property
    def num_deferred(self) -> int:
        """Queued sequences that are skipped because their pages are being transferred."""
        return sum(not self._is_ready(sequence) for sequence in self.waiting)

    def _is_ready(self, sequence: Sequence) -> bool:
        """Return whether no pages are being transferred into host memory for it."""
        return self.incoming is None or not self.incoming.waits_for(sequence.source)

    def _admit(self, sequence: Sequence) -> bool:
        """Admit a waiting sequence if there are enough pages; return whether prefill can start."""
        self._lacks_pages = not self._give_first_pages(sequence)
        if self._lacks_pages:
            return False
        self.prefixes.count(sequence)
        self.waiting.admit(sequence)
        sequence.slot = self._free_slots.pop()
        loading = self.pages.are_loading(sequence.pages)
        sequence.status = Status.LOADING if loading else Status.PREFILLING
        return not loading

    def _give_first_pages(self, sequence: Sequence) -> bool:
        """Allocate pages for its prompt and first rounds, among them cached and loaded ones.

        Returns False and allocates nothing if there are too few, or if pending saves will free
        some.
        """
        keys = self.prefixes.find(sequence)
        here = [key for key in keys if self.pages.knows(key)]
        shared = self.pages.acquire(here)
        missing = self._pages_wanted(sequence) - len(shared)
        waits = missing > self.pages.disposable and self.has_copies
        taken = None if waits else self.pages.allocate(missing)
        if taken is None:
            self.pages.release(shared)
            return False
        fresh, known = iter(taken), dict(zip(here, shared, strict=True))
        below = [KeyedPage(key, next(fresh)) for key in keys if key not in known]
        for key, page in below:
            self.pages.reserve_for_load(page, key)
        known |= {key: page for key, page in below}
        sequence.pages = array("i", [*(known[key] for key in keys), *fresh])
        self.prefixes.reused(sequence, keys, {page.key for page in below})
        if self.tier is not None and below:
            self.tier.load(below)
        sequence.loaded = self._by_tier(sequence, {key for key, _ in below})
        return True

    def _by_tier(self, sequence: Sequence, below: set[bytes]) -> TokensByTier:
        """Count the tokens of loaded pages by the tier that had them when the sequence came."""
        fetched, source = below & sequence.fetched, sequence.source
        tokens = {"host": len(below) - len(fetched)}
        if source is not None:
            tokens[source.origin] = len(fetched)
        size = self.config.page_tokens
        return TokensByTier(**{tier: count * size for tier, count in tokens.items()})

    def _pages_wanted(self, sequence: Sequence) -> int:
        """Return the pages for the rows of its next two rounds (the dispatch depth)."""
        known = max(sequence.kv_len, len(sequence.prefill_ids))
        rows = self.config.rows_ahead(known, sequence.limit)
        return -(-rows // self.config.page_tokens)

    def cover(self, sequence: Sequence) -> bool:
        """Give a sequence pages for the rows of its next two rounds, if there are enough."""
        missing = self._pages_wanted(sequence) - len(sequence.pages)
        if missing <= 0:
            return True
        if missing > self.pages.disposable:
            self._save_unsaved()
        taken = self.pages.allocate(missing)
        sequence.pages.extend(taken or [])
        return taken is not None

    def _release(self, sequence: Sequence, *, waits: bool) -> None:
        self.waiting.release(sequence, waits=waits)
        self._free_slots.append(sequence.slot)
        self.pages.release(sequence.pages)
        sequence.pages, sequence.num_published, sequence.num_prefilled = array("i"), 0, 0
