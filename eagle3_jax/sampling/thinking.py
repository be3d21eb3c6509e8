"""Limit on the tokens that a model thinks before it answers."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ThinkingBudget:
    """Maximum number of thinking tokens; after them the end of thinking is forced.

    `ends` are the ids that end thinking; the first one is the forced id. `begins` is the id that
    begins it if it is the answer's first token, or None if the prompt has begun it. Raises
    ValueError for a negative number and for empty `ends`.
    """

    tokens: int
    ends: tuple[int, ...]
    begins: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"a thinking budget must be 0 tokens or more; got {self.tokens}")
        if not self.ends:
            raise ValueError("a thinking budget needs an id that ends the thinking")
