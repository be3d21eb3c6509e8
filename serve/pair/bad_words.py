"""Convert the request option bad_words to token ids."""

from collections.abc import Sequence
from typing import Protocol

from eagle3_jax.sampling.limits import MAX_BAD_WORD_TOKENS, MAX_BAD_WORDS


class Encoder(Protocol):
    """Interface of a tokenizer that encodes words (`convert.text.tokenizer.Tokenizer`)."""

    def encode(
        self, text: str, add_special: bool = False, most: int | None = None
    ) -> list[int]: ...


def spell_bad_words(encoder: Encoder, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """Return each word's ids at a line's start and, if they differ, after a space.

    Raises ValueError for empty or unencodable words, and for too many spellings.
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
