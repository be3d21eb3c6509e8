"""What became of drafts: rounds, and the figures that follow from them (docs/metrics.md)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class Round(NamedTuple):
    """One round of one sequence; drafted >= wanted >= verified >= accepted.

    drafted: drafts its program makes for a row. wanted: how many of them the request lets it
    verify; verified: how many of those its length had room for; accepted: those that the target
    chose too. kept: tokens it gave the answer: accepted + 1, or less when the request ended there.
    """

    drafted: int
    wanted: int
    verified: int
    accepted: int
    kept: int


@dataclass(frozen=True)
class Acceptance:
    """How often each kind of round happened, and what that means.

    num_speculative_tokens: the most drafts a round may verify; per-position figures have so many.
    A draft (num_drafts) is a round that verified draft tokens, as vLLM counts.
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
    def num_kept_tokens(self) -> int:
        """Tokens that drafts (rounds that verified any) gave to answers."""
        return self._sum(lambda r: r.kept * (r.verified > 0))

    @property
    def num_accepted_per_pos(self) -> tuple[int, ...]:
        return self._per_position(lambda r, position: r.accepted > position)

    @property
    def num_tried_per_pos(self) -> tuple[int, ...]:
        """Drafts that verified this position and accepted every one before it."""
        return self._per_position(lambda r, position: min(r.verified, r.accepted + 1) > position)

    @property
    def accepted_histogram(self) -> tuple[int, ...]:
        """Drafts that accepted exactly 0, 1, ... tokens."""
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
        """Draft tokens that a request's own num_tokens left out."""
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
        """Committed tokens a draft, bonus included; 1 if rounds had no draft, None without one."""
        return self._length(self.num_accepted_tokens + self.num_drafts)

    @property
    def accept_length_eos_corrected(self) -> float | None:
        """The same without what came after the token that ended a request."""
        return self._length(self.num_kept_tokens)

    @property
    def acceptance_per_pos(self) -> tuple[float | None, ...]:
        """Share of all drafts that accepted this position."""
        return tuple(_ratio(count, self.num_drafts) for count in self.num_accepted_per_pos)

    @property
    def conditional_acceptance_per_pos(self) -> tuple[float | None, ...]:
        """Share of the drafts that tried this position."""
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
