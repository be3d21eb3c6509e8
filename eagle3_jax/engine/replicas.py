"""The replicas of an engine, each with a scheduler: slots, pages, prefixes and a queue of its own.

They share rounds, so that one with nothing to do waits for the others: requests go where their
prompt's pages are only as long as that leaves replicas about equally busy.
"""

from collections.abc import Sequence as Rows
from itertools import chain, islice

from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.kv.events import KVEventLog
from eagle3_jax.engine.kv.tiers.below import NO_TIERS, TiersBelow
from eagle3_jax.engine.scheduler import Scheduler
from eagle3_jax.engine.sequence import Sequence, Status

MOST_AHEAD = 0.25
"""Of a replica's slots: as many more sequences than the least busy one it may have and still get a
request for its prefix."""

LOOKED_AT = 8
"""Of a queue, for one that another replica may begin."""


class Replicas:
    """What an engine asks its schedulers; most engines have one."""

    def __init__(
        self,
        config: EngineConfig,
        tiers: TiersBelow = NO_TIERS,
        kv_events: KVEventLog | None = None,
        images: ImageLayout | None = None,
    ):
        """See Scheduler. Raises ValueError for events of several: they name no replica."""
        count = config.data_parallel_size
        if kv_events is not None and count > 1:
            raise ValueError(f"events of KV pages need data_parallel_size 1; got {count}")
        self.schedulers = tuple(Scheduler(config, tiers, kv_events, images) for _ in range(count))
        self._turn = -1
        self._ahead = max(1, int(MOST_AHEAD * config.max_num_seqs))

    @property
    def first(self) -> Scheduler:
        """The only one of most engines, and of all that have pages below the devices."""
        return self.schedulers[0]

    def of(self, sequence: Sequence) -> Scheduler:
        """The scheduler of its replica."""
        return self.schedulers[sequence.replica]

    def add(self, sequence: Sequence) -> None:
        """Queues a new sequence: of the replicas that are not too far ahead of others, at the one
        that has most of its prompt's pages, then at the least busy."""
        sequence.replica = self._best_for(sequence) if len(self.schedulers) > 1 else 0
        self.of(sequence).add(sequence)

    def _best_for(self, sequence: Sequence) -> int:
        found = [_count_known(scheduler, sequence) for scheduler in self.schedulers]
        loads = [len(one.waiting) + len(one.admitted) for one in self.schedulers]
        near = [i for i, load in enumerate(loads) if load - min(loads) <= self._ahead]
        return min(near, key=lambda i: (-found[i], loads[i]))

    def next_chunks(self) -> list[ChunkPlan]:
        """The next chunk of each replica that has one."""
        if len(self.schedulers) > 1:
            self._share_waiting()
        found = [scheduler.next_chunk() for scheduler in self._in_turn()]
        chunks = [chunk for chunk in found if chunk is not None]
        if self.first.config.exact:
            # Which program runs a prompt may not depend on a neighbour's options.
            scores = [chunk.sequence.scores_prompt for chunk in chunks]
            chunks = [c for c, own in zip(chunks, scores, strict=True) if own == scores[0]]
        return chunks

    def _in_turn(self) -> list[Scheduler]:
        """All, each time another one first: whoever is passed over is the first soon."""
        self._turn = (self._turn + 1) % len(self.schedulers)
        return [*self.schedulers[self._turn :], *self.schedulers[: self._turn]]

    def _share_waiting(self) -> None:
        """A replica that could begin a prompt and has none takes one that another can't begin
        now; from a replica with free slots none that has more of its prompt's pages there."""
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

    def bring_images(self, chunks: Rows[ChunkPlan]) -> list[ChunkPlan]:
        """See Scheduler."""
        return [self.of(chunk.sequence).bring_images(chunk) for chunk in chunks]

    def chunks_dispatched(self, chunks: Rows[ChunkPlan]) -> None:
        """See Scheduler."""
        for chunk in chunks:
            self.of(chunk.sequence).chunk_dispatched(chunk)

    @property
    def leaves_slots_idle(self) -> bool:
        """Whether prompts wait although there are slots for them."""
        return any(scheduler.leaves_slots_idle for scheduler in self.schedulers)

    def round_members(self) -> list[Sequence]:
        """Sequences a round would advance."""
        return list(chain.from_iterable(one.round_members() for one in self.schedulers))

    def lacks_pages(self) -> Sequence | None:
        """Give every member of a round the pages of its next two rounds. Return the sequence to
        preempt where there are not enough: the youngest of the client with the most slots."""
        uncovered = (one for one in self.round_members() if not self.of(one).cover(one))
        lacking = next(uncovered, None)
        return lacking and self.of(lacking).waiting.youngest

    def debtor(self) -> Sequence | None:
        """See Scheduler: the first of any replica."""
        return next(filter(None, (scheduler.debtor() for scheduler in self.schedulers)), None)

    def begin_step(self) -> None:
        """Lets copies of pages go on, and counts the step. See Scheduler."""
        for scheduler in self.schedulers:
            scheduler.waiting.count_round()
            scheduler.go_on_with_copies()

    def forget_prefixes(self) -> None:
        """Forgets what pages contain."""
        for scheduler in self.schedulers:
            scheduler.forget_prefixes()

    @property
    def is_copying(self) -> bool:
        """Whether there is something for `go_on_with_copies`."""
        return any(scheduler.is_copying for scheduler in self.schedulers)


def _can_begin(scheduler: Scheduler) -> bool:
    """Whether it would admit a prompt now, if there are pages for it."""
    is_prefilling = any(s.status is Status.PREFILLING for s in scheduler.admitted)
    return scheduler.has_free_slot and not is_prefilling


def _held_up(scheduler: Scheduler) -> list[Sequence]:
    """The first of its queue that it will not admit now."""
    first = int(_can_begin(scheduler))
    return list(islice(scheduler.waiting, first, first + LOOKED_AT))


def _count_known(scheduler: Scheduler, sequence: Sequence) -> int:
    """How many of its prompt's first pages a replica has."""
    return scheduler.pages.count_known(scheduler.prefixes.prompt_keys(sequence))
