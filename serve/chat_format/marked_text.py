"""Splits an answer's text at its marks: special tokens, recognised by their ids.

The same characters spelled in ordinary tokens are text.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenBytes(Protocol):
    """Maps token ids to bytes (`convert.text.tokenizer.Tokenizer`)."""

    def token_bytes(self, token_id: int, skip_special: bool = False) -> bytes: ...


class TextOfTokens:
    """Decodes the tokens of one text. A character split over tokens is in the text of the last."""

    def __init__(self, tokenizer: TokenBytes, *, skip_special: bool = True) -> None:
        self._tokenizer, self._skip_special = tokenizer, skip_special
        self._decode = getincrementaldecoder("utf-8")("replace").decode

    def add(self, token_id: int | None, *, last: bool = False) -> str:
        """Return the text that a token adds; with `last`, also that of an incomplete character."""
        if token_id is None:
            return self._decode(b"", last)
        return self._decode(self._tokenizer.token_bytes(token_id, self._skip_special), last)


@dataclass(frozen=True)
class Mark:
    """A special token that has a meaning in the chat format."""

    text: str

    def __str__(self) -> str:
        return self.text


Piece = str | Mark


@dataclass(frozen=True)
class _Place:
    """A mark in the text: its offset, and its length in characters if the text shows it."""

    mark: Mark
    start: int
    length: int


class MarkedText:
    """Converts tokens and text to text and marks, in order, however they were split into outputs.

    The engine's text may lag behind its tokens (a partial character, the start of a stop string)
    and may end inside a token. Text is held back until its tokens are known.
    """

    def __init__(
        self, tokenizer: TokenBytes, marks: Mapping[int, Mark], *, skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._marks = marks
        self._texts = TextOfTokens(tokenizer, skip_special=skip_special)
        self._length = 0  # characters of the tokens so far
        self._places: deque[_Place] = deque()
        self._text = ""  # not returned yet
        self._start = 0  # characters returned

    def take(self, token_ids: Sequence[int], text: str, *, final: bool) -> list[Piece]:
        """Add an output and return the text and marks that are certain; all of them if `final`."""
        if not self._marks:
            return [text] if text else []
        self._text += text
        for token_id in token_ids:
            self._count(token_id)
        end = self._start + len(self._text)
        known = end if final else min(end, self._length)
        pieces: list[Piece] = []
        while self._places:
            place = self._places[0]
            if known < place.start + (0 if final else place.length):
                known = min(known, place.start)
                break
            pieces += [self._until(place.start), self._places.popleft().mark]
            self._until(min(place.start + place.length, end))
        return [piece for piece in [*pieces, self._until(known)] if piece]

    def _count(self, token_id: int) -> None:
        self._length += len(self._texts.add(token_id))
        if mark := self._marks.get(token_id):
            data = self._tokenizer.token_bytes(token_id, self._skip_special)
            length = len(data.decode(errors="replace"))
            self._places.append(_Place(mark, self._length - length, length))

    def _until(self, end: int) -> str:
        """Return the text up to an offset and advance."""
        size = max(0, end - self._start)
        text, self._text = self._text[:size], self._text[size:]
        self._start += len(text)
        return text
