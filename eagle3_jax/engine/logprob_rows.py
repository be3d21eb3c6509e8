"""Log-probabilities as callers see them: host values, under vLLM's names."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


class Logprob(NamedTuple):
    """The natural logarithm of a token's probability, and its rank: how many tokens are at least as
    good, itself included; of one among the best asked for, its place there. So no two are alike."""

    logprob: float
    rank: int


LogprobsOfToken = dict[int, Logprob]
"""By token id: the token that came, then the best ones by rank."""
PromptLogprobs = tuple[LogprobsOfToken | None, ...]
"""One entry a prompt token; None for the first, which nothing comes before."""


@dataclass(frozen=True, eq=False)
class LogprobRows:
    """What one program says of one sequence's tokens: `logprobs.TokenLogprobs` of one row."""

    chosen: np.ndarray
    rank: np.ndarray
    best_ids: np.ndarray
    best: np.ndarray

    @classmethod
    def of_row(cls, scored: Any, row: int) -> "LogprobRows":
        """One row of a batch's TokenLogprobs."""
        return cls(*(array[row] for array in scored))

    def __len__(self) -> int:
        return len(self.chosen)

    def at(self, index: int, token_id: int, count: int) -> LogprobsOfToken:
        """Of the token at `index`, and of the `count` best there."""
        found = {token_id: Logprob(float(self.chosen[index]), int(self.rank[index]))}
        best = zip(self.best_ids[index, :count], self.best[index, :count], strict=True)
        for rank, (other, logprob) in enumerate(best, start=1):
            found[int(other)] = Logprob(float(logprob), rank)
        return found
