"""How the clients of an engine share its slots: who begins next, and who gives a slot up.

Max-min fairness over slots, and a round robin over clients between equals. The client of a request
is `Request.client`. With one client this is first come, first served, and nothing is preempted.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain, zip_longest

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.sequence import Sequence, Status

ROUNDS_BETWEEN_PREEMPTIONS = 8
"""A preemption costs about a prefill chunk, and a round that overlaps with no other."""
TURN_TOKENS = 64
"""Tokens that the only sequence of a client generates before a client without a slot gets its slot.
"""


@dataclass
class ClientLine:
    """The sequences of one client: those that wait, first come first, and how many have slots."""

    waiting: deque[Sequence] = field(default_factory=deque)
    num_slots: int = 0


class FairQueue:
    """The sequences of all clients: iteration yields those that wait, `admitted` has the others.

    A client is known as long as it has sequences. A new one takes its turn behind the others.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.admitted: list[Sequence] = []
        """Sequences with a slot, oldest first."""
        self._config = config
        self._lines: dict[str, ClientLine] = {}  # The client that was served longest ago first.
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
        self._lines.setdefault(sequence.request.client, ClientLine()).waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Forget a waiting sequence."""
        self._line_of(sequence).waiting.remove(sequence)
        self._forget_if_idle(sequence.request.client)

    def admit(self, sequence: Sequence) -> None:
        """Note that a waiting sequence got a slot."""
        line = self._line_of(sequence)
        line.waiting.remove(sequence)
        line.num_slots += 1
        self.admitted.append(sequence)

    def release(self, sequence: Sequence, *, waits: bool) -> None:
        """Note that a sequence lost its slot. With `waits` it is the next one of its client, whose
        turn ends."""
        line = self._line_of(sequence)
        line.num_slots -= 1
        self.admitted.remove(sequence)
        if waits:
            self._rounds_since_preemption = 0
            line.waiting.appendleft(sequence)
            self.end_turn(sequence)
        self._forget_if_idle(sequence.request.client)

    def end_turn(self, sequence: Sequence) -> None:
        """Put the client of a sequence behind all others."""
        client = sequence.request.client
        self._lines[client] = self._lines.pop(client)

    def first(self, is_ready: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the sequence that should get the next slot.

        It is the first ready one of the client with the fewest slots; of equals, the client that
        was served longest ago. Clients with a prompt under way are passed over, so that a prompt
        finds all the pages of its client's earlier ones.
        """
        busy = self._prefilling()
        lines = [line.waiting for client, line in self._lines.items() if client not in busy]
        firsts = (next(filter(is_ready, waiting), None) for waiting in lines)
        return min(filter(None, firsts), key=self._num_slots, default=None)

    def in_turn(self, first: Sequence | None) -> list[Sequence]:
        """Return the prompts under way, one of each client, and `first` in the order of turns."""
        found = self._prefilling()
        if first is not None:
            found[first.request.client] = first
        return [found[client] for client in self._lines if client in found]

    @property
    def youngest(self) -> Sequence:
        """The sequence admitted last of the client with the most slots."""
        return max(reversed(self.admitted), key=self._num_slots)

    def debtor(self, is_ready: Callable[[Sequence], bool]) -> Sequence | None:
        """Return the sequence that owes its slot to the first that waits, if there is one.

        That is the youngest of the client with the most slots, where this client still has as many
        as the other one afterwards. Where every slot belongs to another client and one has none,
        it is the oldest sequence that has had its turn.
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
        """Note that a round begins."""
        self._rounds_since_preemption += 1

    def _has_had_turn(self, sequence: Sequence) -> bool:
        """Return whether a sequence has generated TURN_TOKENS since it got its slot, and as many
        tokens as its restart took chunks and replayed tokens, so that an answer's restarts together
        cost at most about twice its own rounds."""
        restart = len(sequence.prefill_ids) // self._config.prefill_chunk
        restart += sequence.num_kept if self._config.exact else 0
        return len(sequence.output_ids) - sequence.num_kept >= max(TURN_TOKENS, restart)

    def _prefilling(self) -> dict[str, Sequence]:
        """The prompt that each client has under way, if it has one."""
        found = (s for s in reversed(self.admitted) if s.status is Status.PREFILLING)
        return {sequence.request.client: sequence for sequence in found}

    def _line_of(self, sequence: Sequence) -> ClientLine:
        return self._lines[sequence.request.client]

    def _num_slots(self, sequence: Sequence) -> int:
        return self._line_of(sequence).num_slots

    def _forget_if_idle(self, client: str) -> None:
        line = self._lines[client]
        if not (line.waiting or line.num_slots):
            del self._lines[client]
