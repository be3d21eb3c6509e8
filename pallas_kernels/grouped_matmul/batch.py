"""Row counts of a call of the experts' kernels, with routed and shared experts."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.experimental import pallas as pl


@dataclass(frozen=True)
class ExpertBatch:
    """Row counts of a call. top_k is 0 if nothing is routed. Pairs are numbered token * top_k +
    choice. Results of a shared expert follow those of the pairs; its tiles come first."""

    tokens: int
    top_k: int
    rows: int
    shared: bool

    @property
    def pairs(self) -> int:
        """Number of (token, choice) pairs."""
        return self.tokens * self.top_k

    @property
    def shared_tiles(self) -> int:
        """Number of tiles of the shared expert."""
        return pl.cdiv(self.tokens, self.rows) if self.shared else 0

    @property
    def results(self) -> int:
        """Number of rows that a launch writes."""
        return self.pairs + (self.tokens if self.shared else 0)


class RoutedAndShared(NamedTuple):
    """A value (an Operand or a format) of the routed experts, and that of the shared expert."""

    routed: Any
    shared: Any
