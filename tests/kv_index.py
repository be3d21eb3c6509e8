"""A router's copy of prefix indexes, built from KV events only; it computes no keys."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from eagle3_jax.engine import Engine
from eagle3_jax.engine.kv.events import AllCleared, KVEvent, Medium, PagesRemoved, PagesStored

Key = bytes | int
Contents = tuple[Key | None, str, tuple[int, ...], int, object]
"""A page in events: parent key, salt, tokens, next token and images."""
MEDIA: tuple[Medium, ...] = get_args(Medium)


@dataclass
class IndexCopy:
    """Media of each key, and contents of keys as far as events have described them."""

    media: dict[Key, set[str]] = field(default_factory=dict)
    page_of: dict[Contents, Key] = field(default_factory=dict)
    contents: dict[Key, Contents] = field(default_factory=dict)

    @property
    def places(self) -> set[tuple[str, Key]]:
        return {(medium, key) for key, media in self.media.items() for medium in media}

    def keys_in(self, medium: str) -> set[Key]:
        return {key for key, media in self.media.items() if medium in media}

    def store(
        self,
        keys: Sequence[Key],
        parent: Key | None,
        tokens: Sequence[int],
        lookahead: Sequence[int],
        salt: str,
        medium: str = "GPU",
        images: Sequence[object] = (),
    ) -> None:
        """Store consecutive pages; a key that is already in the medium is an engine bug."""
        size, rest = divmod(len(tokens), len(keys))
        assert rest == 0 and len(lookahead) == (len(keys) if size else 0)
        for index, key in enumerate(keys):
            there = self.media.setdefault(key, set())
            assert medium not in there
            there.add(medium)
            if size:
                run = tuple(tokens[index * size : (index + 1) * size])
                shown = images[index] if images else ()
                self._describe(key, (parent, "" if parent else salt, run, lookahead[index], shown))
            parent = key

    def _describe(self, key: Key, contents: Contents) -> None:
        """Check that keys and contents correspond one to one in all media."""
        assert self.contents.setdefault(key, contents) == contents
        assert self.page_of.setdefault(contents, key) == key

    def remove(self, keys: Iterable[Key], medium: str = "GPU") -> None:
        for key in keys:
            self.media[key].remove(medium)
            if not self.media[key]:
                del self.media[key]
                if (contents := self.contents.pop(key, None)) is not None:
                    del self.page_of[contents]

    def clear(self) -> None:
        for part in (self.media, self.page_of, self.contents):
            part.clear()

    def replay(self, events: Iterable[KVEvent]) -> None:
        for event in events:
            match event:
                case PagesStored(keys, parent, tokens, lookahead, size, salt, medium, images):
                    assert len(tokens) == size * len(keys)
                    self.store(keys, parent, tokens, lookahead, salt, medium, images)
                case PagesRemoved(keys, medium):
                    self.remove(keys, medium)
                case AllCleared():
                    self.clear()

    def pages_found(
        self, prompt: Sequence[int], size: int, salt: str = "", media: Collection[str] = MEDIA
    ) -> int:
        """Return how many of a prompt's first pages, with their next tokens, are in these media."""
        parent: Key | None = None
        for count in range((len(prompt) - 1) // size):
            start, end = count * size, (count + 1) * size
            contents = (parent, "" if parent else salt, tuple(prompt[start:end]), prompt[end], ())
            parent = self.page_of.get(contents)
            if parent is None or self.media[parent].isdisjoint(media):
                return count
        return max(0, (len(prompt) - 1) // size)


def places_in(engine: Engine) -> set[tuple[str, bytes]]:
    """Return what each medium has, according to the engine's own indexes."""
    scheduler = engine._replicas.first
    places = {("GPU", key) for key in scheduler.pages._page_of}
    if scheduler.tier is not None:
        places |= {("CPU", key) for key in scheduler.tier._slot_of}
    if scheduler.disk is not None:
        on_disk = scheduler.disk._index.keys_of(engine.host_pages.fingerprint.hex())
        places |= {("STORAGE", bytes.fromhex(key)) for key in on_disk}
    return places
