"""Log-probabilities for callers: host values, under vLLM's names."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Logprob(NamedTuple):
    """Natural logarithm of a token's probability, and its unique rank.

    The rank counts the tokens at least as likely, itself included, or is the place among the best.
    """

    logprob: float
    rank: int


class LogprobsOfToken(Mapping[int, Logprob]):
    """Log-probabilities at one position by token id: the generated token, then the best by rank.

    With 20 best tokens an entry takes 0.4 kB; a dict of its values takes 4 kB.

    Args:
        token_id: The token that was generated.
        chosen: Its log-probability and rank.
        best_ids: Ids of the best tokens as int32, best first.
        best: Their log-probabilities as float32.
    """

    __slots__ = ("_best", "_best_ids", "chosen", "token_id")

    def __init__(
        self, token_id: int, chosen: Logprob, best_ids: bytes = b"", best: bytes = b""
    ) -> None:
        self.token_id, self.chosen = token_id, chosen
        self._best_ids, self._best = best_ids, best

    @property
    def best(self) -> list[tuple[int, float]]:
        """The best tokens and their log-probabilities, best first."""
        ids, values = memoryview(self._best_ids).cast("i"), memoryview(self._best).cast("f")
        return list(zip(ids, values, strict=True))

    def __getitem__(self, token_id: int) -> Logprob:
        for rank, (other, logprob) in enumerate(self.best, start=1):
            if other == token_id:
                return Logprob(logprob, rank)
        if token_id != self.token_id:
            raise KeyError(token_id)
        return self.chosen

    def __iter__(self) -> Iterator[int]:
        return iter(dict.fromkeys([self.token_id, *(token_id for token_id, _ in self.best)]))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


PromptLogprobs = tuple[LogprobsOfToken | None, ...]
"""One entry per prompt token; None for the first, which has no predecessor."""


@dataclass(frozen=True, eq=False)
class LogprobRows:
    """One sequence's row of `logprobs.TokenLogprobs` from one program."""

    chosen: np.ndarray
    rank: np.ndarray
    best_ids: np.ndarray
    best: np.ndarray

    @classmethod
    def of_row(cls, scored: Any, row: int) -> "LogprobRows":
        """Select one row of a batch's TokenLogprobs."""
        return cls(*(array[row] for array in scored))

    def __len__(self) -> int:
        return len(self.chosen)

    def at(self, index: int, token_id: int, count: int) -> LogprobsOfToken:
        """Return the log-probabilities of the token at `index` and of the `count` best there."""
        return LogprobsOfToken(
            token_id,
            Logprob(float(self.chosen[index]), int(self.rank[index])),
            self.best_ids[index, :count].astype(np.int32).tobytes(),
            self.best[index, :count].astype(np.float32).tobytes(),
        )
