"""Cuts an answer's text at its marks: special tokens, recognised by their ids.

Spelled in ordinary tokens, the same characters are text.
"""

from codecs import getincrementaldecoder
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


class TokenBytes(Protocol):
    """What spells a token (`convert.text.tokenizer.Tokenizer`)."""

    def token_bytes(self, token_id: int, skip_special: bool = False) -> bytes: ...


@dataclass(frozen=True)
class Mark:
    """A special token that means something to the reader of an answer."""

    text: str

    def __str__(self) -> str:
        return self.text


Piece = str | Mark


@dataclass(frozen=True)
class _Place:
    """A mark in the text: the characters before it, and those by which the text shows it."""

    mark: Mark
    start: int
    length: int


class MarkedText:
    """Tokens and their text in, text and marks in their order out, however they were cut.

    The engine's text may come later than its tokens (half a character, the start of a stop string)
    and be cut inside a token; what no token vouches for yet is held back.
    """

    def __init__(
        self, tokenizer: TokenBytes, marks: Mapping[int, Mark], *, skip_special: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._marks = marks
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._length = 0  # characters of the tokens so far
        self._places: deque[_Place] = deque()
        self._text = ""  # not handed out yet
        self._start = 0  # characters handed out

    def take(self, token_ids: Sequence[int], text: str, *, final: bool) -> list[Piece]:
        """Adds an output; returns what is certain by now, everything when final."""
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
        data = self._tokenizer.token_bytes(token_id, self._skip_special)
        self._length += len(self._decode(data))
        if mark := self._marks.get(token_id):
            length = len(data.decode(errors="replace"))
            self._places.append(_Place(mark, self._length - length, length))

    def _until(self, end: int) -> str:
        """Hands out the text up to a place."""
        size = max(0, end - self._start)
        text, self._text = self._text[:size], self._text[size:]
        self._start += len(text)
        return text
