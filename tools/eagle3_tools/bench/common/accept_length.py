"""Accept length of one category of prompts, or of all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from eagle3_jax.engine import EngineStats


@dataclass(frozen=True)
class AcceptCounts:
    """Counters as vLLM defines them. A draft is a round of one sequence with draft tokens."""

    drafts: int
    draft_tokens: int
    accepted: int
    accepted_per_position: tuple[int, ...]

    @classmethod
    def between(cls, before: EngineStats, after: EngineStats) -> "AcceptCounts":
        """Return the counts between two snapshots."""
        old, new = before.num_accepted_per_pos, after.num_accepted_per_pos
        return cls(
            after.num_drafts - before.num_drafts,
            after.num_draft_tokens - before.num_draft_tokens,
            after.num_accepted_tokens - before.num_accepted_tokens,
            tuple(b - a for a, b in zip(old, new, strict=True)),
        )

    @property
    def accept_length(self) -> float:
        """Tokens committed per round: 1 + accepted / drafts (1 without drafts)."""
        return 1 + self.accepted / self.drafts if self.drafts else 1.0

    @property
    def per_position(self) -> tuple[float, ...]:
        """Fraction of drafts whose token at each position was accepted."""
        return tuple(count / max(self.drafts, 1) for count in self.accepted_per_position)

    @property
    def histogram(self) -> tuple[int, ...]:
        """Number of drafts with exactly 0, 1, ... accepted tokens; acceptance is a prefix."""
        least = (self.drafts, *self.accepted_per_position, 0)
        return tuple(more - fewer for more, fewer in pairwise(least))


@dataclass(frozen=True)
class AcceptRow:
    """Accept length of one category, or of all.

    `right` is the fraction of correct answers (NaN if not judged), `histogram` the rounds by
    accepted draft tokens, 0 first (empty if unknown), `distinct_bigrams` the distinct fraction of
    adjacent token pairs. A model that repeats itself has few, and a meaningless accept length.
    """

    category: str
    prompts: int
    tokens: int
    counts: AcceptCounts
    accept_length: float
    per_position: tuple[float, ...]
    right: float
    histogram: tuple[int, ...]
    distinct_bigrams: float


def distinct_bigrams(answers: Iterable[Sequence[int]]) -> float:
    """Return distinct pairs of adjacent tokens over all pairs; 0 if no answer has two tokens."""
    pairs = [pair for answer in answers for pair in pairwise(answer)]
    return len(set(pairs)) / max(len(pairs), 1)
