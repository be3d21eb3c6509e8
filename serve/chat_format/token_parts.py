"""Assigns each token of an answer to one of its parts."""

from collections.abc import Iterable
from typing import Literal

from serve.chat_format.format import ChatReading
from serve.chat_format.reader import END_OF_THINK, THINK

TokenPart = Literal["reasoning", "content", "calls", "mark"]


class TokenParts:
    """Assigns the tokens of one answer like its reader does. Marks between parts are separate.

    `inside_reasoning`: the prompt ends inside the reasoning. `reads_calls`: functions are offered,
    so that calls are parsed.
    """

    def __init__(self, reading: ChatReading, *, inside_reasoning: bool, reads_calls: bool) -> None:
        self._marks = reading.marks
        self._section = reading.reader.section
        self._reads_calls = reads_calls and reading.tools is not None
        self._untouched = True
        inside = inside_reasoning and reading.reasoning is not None
        self._part: TokenPart = "reasoning" if inside else "content"

    def take(self, token_ids: Iterable[int]) -> list[TokenPart]:
        """Return the parts of these tokens."""
        return [self._take(token_id) for token_id in token_ids]

    def _take(self, token_id: int) -> TokenPart:
        mark = self._marks.get(token_id)
        untouched, self._untouched = self._untouched, False
        if mark == THINK and untouched:
            self._part = "reasoning"
            return "mark"
        if mark == END_OF_THINK and self._part == "reasoning":
            self._part = "content"
            return "mark"
        if mark == self._section and self._part != "calls":
            self._part = "calls" if self._reads_calls else "content"
            return "mark" if self._reads_calls else "content"
        return self._part
