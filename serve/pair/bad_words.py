"""The request option bad_words as token ids."""

from collections.abc import Sequence
from typing import Protocol

from eagle3_jax.sampling.limits import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS


class Encoder(Protocol):
    """What spells a word (`convert.text.tokenizer.Tokenizer`)."""

    def encode(
        self, text: str, add_special: bool = False, most: int | None = None
    ) -> list[int]: ...


def spell_bad_words(encoder: Encoder, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """A word as it is written at a line's start and, if that is other ids, behind a space.

    Raises ValueError for what is no word or can't be encoded, and for too many spellings.
    """
    if len(words) > MAX_BAD_WORDS:
        raise ValueError(f"bad_words may have at most {MAX_BAD_WORDS} words; got {len(words)}")
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        bare = word.lstrip()
        if not bare:
            raise ValueError("bad_words must be words")
        try:
            for text in (bare, f" {bare}"):
                found[tuple(encoder.encode(text, most=MAX_BAD_WORD_TOKENS))] = None
        except ValueError as error:
            raise ValueError(f"bad_words: {word[:100]!r} can't be encoded: {error}") from error
    if len(found) > MAX_BAD_WORDS:
        raise ValueError(
            f"bad_words: at most {MAX_BAD_WORDS} spellings, and a word has one with a space in "
            f"front and one without; got {len(found)}"
        )
    return tuple(found)
