"""The rows of a call, and what routed experts and a shared one have beside each other."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.experimental import pallas as pl


@dataclass(frozen=True)
class ExpertBatch:
    """The rows of a call. Pairs are token * top_k + choice, top_k 0 where nothing is routed; with a
    shared expert, which every token chose, its results follow those of the pairs and its tiles come
    before theirs."""

    tokens: int
    top_k: int
    rows: int
    shared: bool

    @property
    def pairs(self) -> int:
        """How many (token, choice) there are."""
        return self.tokens * self.top_k

    @property
    def shared_tiles(self) -> int:
        """Tiles of the shared expert."""
        return pl.cdiv(self.tokens, self.rows) if self.shared else 0

    @property
    def results(self) -> int:
        """Rows of what a launch writes."""
        return self.pairs + (self.tokens if self.shared else 0)


class RoutedAndShared(NamedTuple):
    """What the routed experts have, Operands or formats, and the shared one in its place."""

    routed: Any
    shared: Any
