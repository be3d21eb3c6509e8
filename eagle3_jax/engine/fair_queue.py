"""Fair sharing of an engine's slots between clients: admission and preemption order.

Slots follow max-min fairness, with a round robin over clients between equals. The client of a
request is `Request.client`. With one client this is first come, first served without preemption.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.sequence import Sequence, Status

ROUNDS_BETWEEN_PREEMPTIONS = 8
"""Rounds between preemptions: one costs about a prefill chunk and a round without overlap."""
TURN_TOKENS = 64
"""Tokens after which a client's only sequence may lose its slot to a client without one."""


@dataclass
class ClientQueue:
    """The sequences of one client: waiting ones in order of arrival, and the number with slots."""

    waiting: deque[Sequence] = field(default_factory=deque)
    num_slots: int = 0


class FairQueue:
    """The sequences of all clients; iteration yields waiting ones, `admitted` holds the others.

    A client is known as long as it has sequences. A new one queues behind the others.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.admitted: list[Sequence] = []
        """Sequences with a slot, oldest first."""
        self._config = config
        self._lines: dict[str, ClientQueue] = {}  # The least recently served client first.
        self._rounds_since_preemption = ROUNDS_BETWEEN_PREEMPTIONS

    def __len__(self) -> int:
        return sum(len(line.waiting) for line in self._lines.values())

    def __iter__(self) -> Iterator[Sequence]:
        rows = zip_longest(*(line.waiting for line in self._lines.values()))
        return filter(None, chain.from_iterable(rows))

    def __contains__(self, sequence: Sequence) -> bool:
        return any(sequence is waiting for waiting in self)

    def append(self, sequence: Sequence) -> None:
        """Queue a new sequence behind those of its client."""
        self._lines.setdefault(sequence.request.client, ClientQueue()).waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        self._line_of(sequence).waiting.remove(sequence)
        self._forget_if_idle(sequence.request.client)

    def admit(self, sequence: Sequence) -> None:
        """Record that a waiting sequence got a slot."""
        line = self._line_of(sequence)
        line.waiting.remove(sequence)
        line.num_slots += 1
        self.admitted.append(sequence)

    def release(self, sequence: Sequence, *, waits: bool) -> None:
        """Record a lost slot. With `waits` the sequence is its client's next, whose turn ends."""
        line = self._line_of(sequence)
        line.num_slots -= 1
        self.admitted.remove(sequence)
        if waits:
            self._rounds_since_preemption = 0
            line.waiting.appendleft(sequence)
            self.end_turn(sequence)
        self._forget_if_idle(sequence.request.client)

    def end_turn(self, sequence: Sequence) -> None:
        """Move the client of a sequence behind all others."""
        client = sequence.request.client
        self._lines[client] = self._lines.pop(client)

    def first(self, is_ready: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the sequence that should get the next slot.

        This is the first ready one of the client with the fewest slots, or of the least recently
        served client among equals. Clients with a prefill in progress are skipped, so that a prompt
        finds all pages of its client's earlier prompts.
        """
        busy = self._prefilling()
        lines = [line.waiting for client, line in self._lines.items() if client not in busy]
        firsts = (next(filter(is_ready, waiting), None) for waiting in lines)
        return min(filter(None, firsts), key=self._num_slots, default=None)

    def in_turn(self, first: Sequence | None) -> list[Sequence]:
        """Return the prefills in progress, one per client, and `first`, in turn order."""
        found = self._prefilling()
        if first is not None:
            found[first.request.client] = first
        return [found[client] for client in self._lines if client in found]

    @property
    def youngest(self) -> Sequence:
        """The sequence admitted last of the client with the most slots."""
        return max(reversed(self.admitted), key=self._num_slots)

    def to_preempt(self, is_ready: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the sequence that must yield its slot to the first waiting one, if any.

        It is the youngest of the client with the most slots, if that client keeps at least as many
        as the other. If every slot belongs to another client and a client has none, it is the
        oldest sequence that has had its turn.
        """
        is_early = self._rounds_since_preemption < ROUNDS_BETWEEN_PREEMPTIONS
        if is_early or len(self._lines) < 2 or not self.admitted:
            return None
        if (claimant := self.first(is_ready)) is None:
            return None
        own, youngest = self._num_slots(claimant), self.youngest
        if self._num_slots(youngest) >= own + 2:
            return youngest
        return None if own else next(filter(self._has_had_turn, self.admitted), None)

    def count_round(self) -> None:
        self._rounds_since_preemption += 1

    def _has_had_turn(self, sequence: Sequence) -> bool:
        """Return whether a sequence has generated TURN_TOKENS, and as many as its restart cost.

        Counting chunks and replays, an answer's restarts then cost at most about twice its rounds.
        """
        restart = len(sequence.prefill_ids) // self._config.prefill_chunk
        restart += sequence.num_kept if self._config.exact else 0
        return len(sequence.output_ids) - sequence.num_kept >= max(TURN_TOKENS, restart)

    def _prefilling(self) -> dict[str, Sequence]:
        """Return each client's prefill in progress, if any."""
        found = (s for s in reversed(self.admitted) if s.status is Status.PREFILLING)
        return {sequence.request.client: sequence for sequence in found}

    def _line_of(self, sequence: Sequence) -> ClientQueue:
        return self._lines[sequence.request.client]

    def _num_slots(self, sequence: Sequence) -> int:
        return self._line_of(sequence).num_slots

    def _forget_if_idle(self, client: str) -> None:
        line = self._lines[client]
        if not (line.waiting or line.num_slots):
            del self._lines[client]
