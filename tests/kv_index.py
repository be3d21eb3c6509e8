"""A router's copy of prefix indexes, built from nothing but events: who asks by tokens and salt is
told how many pages are there. It knows no keys but those it was told, and computes none."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from eagle3_jax.engine.kv.events import AllCleared, KVEvent, PagesRemoved, PagesStored

Key = bytes | int
Contents = tuple[Key | None, str, tuple[int, ...], int]
"""A page as events describe it: its parent's key, its salt, its tokens and the one after them."""


@dataclass
class IndexCopy:
    """page_of: the key of what can be found; contents: what each key stands for."""

    page_of: dict[Contents, Key] = field(default_factory=dict)
    contents: dict[Key, Contents] = field(default_factory=dict)

    @property
    def keys(self) -> set[Key]:
        return set(self.contents)

    def store(
        self,
        keys: Sequence[Key],
        parent: Key | None,
        tokens: Sequence[int],
        lookahead: Sequence[int],
        salt: str,
    ) -> None:
        """Neighbours, first to last; a key that is there already would be an engine's mistake."""
        size, rest = divmod(len(tokens), len(keys))
        assert rest == 0 and len(lookahead) == len(keys)
        for index, key in enumerate(keys):
            run = tuple(tokens[index * size : (index + 1) * size])
            contents = (parent, "" if parent else salt, run, lookahead[index])
            assert key not in self.contents and contents not in self.page_of
            self.page_of[contents], self.contents[key] = key, contents
            parent = key

    def remove(self, keys: Iterable[Key]) -> None:
        for key in keys:
            del self.page_of[self.contents.pop(key)]

    def clear(self) -> None:
        self.page_of.clear()
        self.contents.clear()

    def replay(self, events: Iterable[KVEvent]) -> None:
        for event in events:
            match event:
                case PagesStored(keys, parent, tokens, lookahead, size, salt, "GPU"):
                    assert len(tokens) == size * len(keys)
                    self.store(keys, parent, tokens, lookahead, salt)
                case PagesRemoved(keys, "GPU"):
                    self.remove(keys)
                case AllCleared():
                    self.clear()
                case _:
                    raise AssertionError(event)

    def pages_found(self, prompt: Sequence[int], size: int, salt: str = "") -> int:
        """How many pages a prompt begins with, of those whose next token it has too."""
        parent: Key | None = None
        for count in range((len(prompt) - 1) // size):
            start, end = count * size, (count + 1) * size
            contents = (parent, "" if parent else salt, tuple(prompt[start:end]), prompt[end])
            if contents not in self.page_of:
                return count
            parent = self.page_of[contents]
        return max(0, (len(prompt) - 1) // size)
