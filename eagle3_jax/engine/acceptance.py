"""Acceptance statistics of rounds and drafts (docs/metrics.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Round(NamedTuple):
    """One round of one sequence; drafted >= wanted >= verified >= accepted.

    The program makes `drafted` drafts, of which request and engine verify `wanted`; for `verified`
    of them the length limit had room, and the target chose `accepted`. The answer gained `kept`
    tokens: accepted + 1, or fewer if the request ended. The last `looked_up` of the `drafted`
    were looked up in the sequence's own tokens, the others made by the draft model.
    """

    drafted: int
    wanted: int
    verified: int
    accepted: int
    kept: int
    looked_up: int = 0

    def copies(self, drafts: int) -> int:
        """Return how many of the first `drafts` drafts were looked up."""
        return max(0, drafts - (self.drafted - self.looked_up)) if self.looked_up else 0


@dataclass(frozen=True)
class Acceptance:
    """Counts of each kind of round, and the statistics derived from them.

    `num_speculative_tokens` is the maximum drafts per round and the length of per-position
    statistics. As in vLLM, `num_drafts` counts rounds that verified draft tokens.
    """

    rounds: Mapping[Round, int]
    num_speculative_tokens: int

    @property
    def num_drafts(self) -> int:
        return self._sum(lambda r: r.verified > 0)

    @property
    def num_draft_tokens(self) -> int:
        return self._sum(lambda r: r.verified)

    @property
    def num_accepted_tokens(self) -> int:
        return self._sum(lambda r: r.accepted)

    @property
    def num_lookup_drafts(self) -> int:
        """Rounds that verified looked-up tokens."""
        return self._sum(lambda r: r.copies(r.verified) > 0)

    @property
    def num_lookup_draft_tokens(self) -> int:
        return self._sum(lambda r: r.copies(r.verified))

    @property
    def num_accepted_lookup_tokens(self) -> int:
        return self._sum(lambda r: r.copies(r.accepted))

    @property
    def num_kept_tokens(self) -> int:
        """Tokens that rounds with verified drafts added to answers."""
        return self._sum(lambda r: r.kept * (r.verified > 0))

    @property
    def num_accepted_per_pos(self) -> tuple[int, ...]:
        return self._per_position(lambda r, position: r.accepted > position)

    @property
    def num_tried_per_pos(self) -> tuple[int, ...]:
        """Rounds that verified this position and accepted every position before it."""
        return self._per_position(lambda r, position: min(r.verified, r.accepted + 1) > position)

    @property
    def accepted_histogram(self) -> tuple[int, ...]:
        """Rounds with verified drafts that accepted exactly 0, 1, ... tokens."""
        accepted = (*self.num_accepted_per_pos, 0)
        at_least = (self.num_drafts, *self.num_accepted_per_pos)
        return tuple(a - b for a, b in zip(at_least, accepted, strict=True))

    @property
    def rounds_by_drafted(self) -> tuple[int, ...]:
        """Rounds whose program made 0, 1, ... drafts."""
        counts = range(self.num_speculative_tokens + 1)
        return tuple(self._sum(lambda r, k=k: r.drafted == k) for k in counts)

    @property
    def skipped_by_request(self) -> int:
        """Draft tokens excluded by a request's own num_speculative_tokens or by the engine."""
        return self._sum(lambda r: r.drafted - r.wanted)

    @property
    def skipped_for_room(self) -> int:
        """Draft tokens that could not be committed below the request's length limit."""
        return self._sum(lambda r: r.wanted - r.verified)

    @property
    def acceptance_rate(self) -> float | None:
        return _ratio(self.num_accepted_tokens, self.num_draft_tokens)

    @property
    def accept_length(self) -> float | None:
        """Committed tokens per draft, bonus included; 1 if no round drafts, None without rounds."""
        return self._length(self.num_accepted_tokens + self.num_drafts)

    @property
    def accept_length_eos_corrected(self) -> float | None:
        """Accept length without the tokens after the one that ended a request."""
        return self._length(self.num_kept_tokens)

    @property
    def acceptance_per_pos(self) -> tuple[float | None, ...]:
        """Fraction of all drafts that accepted this position."""
        return tuple(_ratio(count, self.num_drafts) for count in self.num_accepted_per_pos)

    @property
    def conditional_acceptance_per_pos(self) -> tuple[float | None, ...]:
        """Fraction of the drafts that tried this position and accepted it."""
        pairs = zip(self.num_accepted_per_pos, self.num_tried_per_pos, strict=True)
        return tuple(_ratio(accepted, tried) for accepted, tried in pairs)

    def _sum(self, value: Callable[[Round], int]) -> int:
        return sum(value(kind) * count for kind, count in self.rounds.items())

    def _per_position(self, holds: Callable[[Round, int], bool]) -> tuple[int, ...]:
        positions = range(self.num_speculative_tokens)
        return tuple(self._sum(lambda r, p=p: holds(r, p)) for p in positions)

    def _length(self, tokens: int) -> float | None:
        if self.rounds and not self.num_drafts:
            return 1.0
        return _ratio(tokens, self.num_drafts)


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None
