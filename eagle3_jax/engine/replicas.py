"""Replicas of an engine, each with its own scheduler: slots, pages, prefixes and a queue.

They share rounds, so an idle replica waits for the others. Requests go to the replica with their
prompt's pages only while this keeps replicas about equally busy.
"""

from itertools import chain, islice

from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.kv.disk_tier import NO_TIERS, LowerTiers
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.scheduler import Scheduler
from eagle3_jax.engine.sequence import Sequence, Status

MOST_AHEAD = 0.25
"""Fraction of a replica's slots by which its load may exceed the lowest load while it still gets a
request for its prefix."""

LOOKED_AT = 8
"""Queued sequences that are considered for another replica."""


class Replicas:
    """The schedulers of an engine, mostly one."""

    def __init__(
        self,
        config: EngineConfig,
        tiers: LowerTiers = NO_TIERS,
        kv_events: KVEventLog | None = None,
        images: ImageLayout | None = None,
    ):
        """See Scheduler. Raises ValueError for KV events of several replicas."""
        count = config.data_parallel_size
        if kv_events is not None and count > 1:
            raise ValueError(f"KV events need data_parallel_size 1, got {count}")
        self.schedulers = tuple(Scheduler(config, tiers, kv_events, images) for _ in range(count))
        self._turn = -1
        self._ahead = max(1, int(MOST_AHEAD * config.max_num_seqs))

    @property
    def first(self) -> Scheduler:
        """The only scheduler in most engines, and always in engines with memory tiers."""
        return self.schedulers[0]

    def of(self, sequence: Sequence) -> Scheduler:
        return self.schedulers[sequence.replica]

    def add(self, sequence: Sequence) -> None:
        """Queue a new sequence at a replica that is not too far ahead of the others.

        Among these, prefer the most cached pages of its prompt, then the lowest load.
        """
        sequence.replica = self._best_for(sequence) if len(self.schedulers) > 1 else 0
        self.of(sequence).add(sequence)

    def _best_for(self, sequence: Sequence) -> int:
        found = [_count_known(scheduler, sequence) for scheduler in self.schedulers]
        loads = [len(one.waiting) + len(one.admitted) for one in self.schedulers]
        near = [i for i, load in enumerate(loads) if load - min(loads) <= self._ahead]
        return min(near, key=lambda i: (-found[i], loads[i]))

    def next_chunks(self) -> list[ChunkPlan]:
        """Return the next chunk of each replica that has one."""
        if len(self.schedulers) > 1:
            self._share_waiting()
        found = [scheduler.next_chunk() for scheduler in self._in_turn()]
        chunks = [chunk for chunk in found if chunk is not None]
        if self.first.config.exact:
            # The program of a prompt must not depend on a neighbour's options.
            scores = [chunk.sequence.scores_prompt for chunk in chunks]
            chunks = [c for c, own in zip(chunks, scores, strict=True) if own == scores[0]]
        return chunks

    def _in_turn(self) -> list[Scheduler]:
        """Return all schedulers, another one first each time, so that none is always last."""
        self._turn = (self._turn + 1) % len(self.schedulers)
        return [*self.schedulers[self._turn :], *self.schedulers[: self._turn]]

    def _share_waiting(self) -> None:
        """Move prompts that must wait to replicas that could start them and have no other prompts.

        A replica with free slots keeps those of which it has more pages than the other.
        """
        for replica, idle in enumerate(self.schedulers):
            longest = max(self.schedulers, key=lambda scheduler: len(_held_up(scheduler)))
            if idle.waiting or not _can_begin(idle):
                continue
            for sequence in _held_up(longest):
                at_home, here = (_count_known(one, sequence) for one in (longest, idle))
                if not longest.has_free_slot or here >= at_home:
                    longest.waiting.remove(sequence)
                    sequence.replica = replica
                    idle.add(sequence)
                    break

    @property
    def has_idle_slots(self) -> bool:
        return any(scheduler.has_idle_slots for scheduler in self.schedulers)

    def round_members(self) -> list[Sequence]:
        return list(chain.from_iterable(one.round_members() for one in self.schedulers))

    def lacks_pages(self) -> Sequence | None:
        """Give round members pages for two rounds, or return the sequence to preempt.

        That is the youngest sequence of the client with the most slots.
        """
        uncovered = (one for one in self.round_members() if not self.of(one).cover(one))
        lacking = next(uncovered, None)
        return lacking and self.of(lacking).waiting.youngest

    def to_preempt(self) -> Sequence | None:
        """See Scheduler; returns the first of any replica."""
        return next(filter(None, (scheduler.to_preempt() for scheduler in self.schedulers)), None)

    def begin_step(self) -> None:
        """Advance page copies and count the step. See Scheduler."""
        for scheduler in self.schedulers:
            scheduler.waiting.count_round()
            scheduler.poll_copies()

    def drop_prefixes(self) -> None:
        for scheduler in self.schedulers:
            scheduler.drop_prefixes()

    @property
    def is_copying(self) -> bool:
        return any(scheduler.is_copying for scheduler in self.schedulers)


def _can_begin(scheduler: Scheduler) -> bool:
    """Return whether a prompt would be admitted now, given pages."""
    is_prefilling = any(s.status is Status.PREFILLING for s in scheduler.admitted)
    return scheduler.has_free_slot and not is_prefilling


def _held_up(scheduler: Scheduler) -> list[Sequence]:
    """Return the first queued sequences that will not be admitted now."""
    first = int(_can_begin(scheduler))
    return list(islice(scheduler.waiting, first, first + LOOKED_AT))


def _count_known(scheduler: Scheduler, sequence: Sequence) -> int:
    """Return the number of leading prompt pages that a replica has."""
    return scheduler.pages.count_known(scheduler.prefixes.prompt_keys(sequence))
