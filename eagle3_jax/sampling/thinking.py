"""How long a model may think before it answers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ThinkingBudget:
    """At most so many tokens of thinking; behind them its end is forced.

    ends: ids that end it, of which the first is the one that is forced. begins: the id that begins
    it if it is the answer's first token; None where the prompt has begun it. Raises ValueError for
    a negative number, and without an end.
    """

    tokens: int
    ends: tuple[int, ...]
    begins: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"a thinking budget must be 0 tokens or more; got {self.tokens}")
        if not self.ends:
            raise ValueError("a thinking budget needs an id that ends the thinking")
