"""A seeded synthetic chat corpus of five categories, each with a held-out split by problem."""

import random
from collections.abc import Iterator, Sequence

from eagle3_tools.make_demo.corpus import arithmetic, facts, functions, sorting, structured
from eagle3_tools.make_demo.corpus.conversation import SPLITS, Conversation, belongs

_MODULES = {
    "arithmetic": arithmetic,
    "sorting": sorting,
    "functions": functions,
    "structured": structured,
    "facts": facts,
}
CATEGORIES = tuple(_MODULES)
SHARES = (8, 7, 1, 2, 2)  # relative frequency of each category in the mixture


def conversations(category: str, split: str, seed: int) -> Iterator[Conversation]:
    """Yield endless conversations of one category, equal for equal arguments on every machine.

    All problems of a conversation are in `split`. A problem's split is a hash of its key, so the
    splits are disjoint.
    """
    if category not in _MODULES:
        raise ValueError(f"category must be one of {', '.join(CATEGORIES)}, got {category!r}")
    if split not in SPLITS:
        raise ValueError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    rng = random.Random(f"{category}/{split}/{seed}")
    while True:
        conversation = _MODULES[category].draw(rng)
        if belongs(conversation, split):
            yield conversation


def mixture(split: str, seed: int, shares: Sequence[float] = SHARES) -> Iterator[Conversation]:
    """Yield endless conversations of all categories, in the proportions of `shares`."""
    rng = random.Random(f"mixture/{split}/{seed}")
    streams = {category: conversations(category, split, seed) for category in CATEGORIES}
    while True:
        yield next(streams[rng.choices(CATEGORIES, shares)[0]])


def held_out_prompts(category: str, count: int) -> list[Conversation]:
    """Return the first `count` held-out conversations of a category with different problems."""
    found: dict[tuple[str, ...], Conversation] = {}
    for conversation in conversations(category, "held_out", 0):
        found.setdefault(conversation.keys, conversation)
        if len(found) == count:
            break
    return list(found.values())


def correct(category: str, conversation: Conversation, answer: str) -> bool:
    """Return whether `answer`, decoded with special tokens but without the stop, is right."""
    module = _MODULES[category]
    if hasattr(module, "correct"):
        return module.correct(conversation, answer)
    return answer.strip() == conversation.answer["content"]


__all__ = ["CATEGORIES", "Conversation", "conversations", "correct", "held_out_prompts", "mixture"]
