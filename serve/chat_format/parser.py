"""Parses a chat answer into its parts as engine outputs arrive."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Literal
from uuid import uuid4

from serve.chat_format.format import ChatReading
from serve.chat_format.marked_text import MarkedText, TokenBytes
from serve.chat_format.parts import AnswerParts
from serve.chat_format.reader import END_OF_THINK, THINK, Schemas


def new_call_id() -> str:
    """Return an id for a call to which the model gave none."""
    return f"call_{uuid4().hex[:24]}"


class AnswerParser:
    """Incremental parser of one answer. The result is independent of how outputs split the tokens.

    Args:
        inside_reasoning: whether the prompt ends inside the reasoning.
        schemas: argument schemas of the offered functions; None if there are none.
        one_call: drop everything after the first call.
        includes_reasoning: False drops the reasoning.
        skip_special: whether the text omits special tokens.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        reading: ChatReading,
        *,
        inside_reasoning: bool,
        schemas: Schemas | None,
        one_call: bool = False,
        includes_reasoning: bool = True,
        skip_special: bool = True,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._text = MarkedText(tokenizer, reading.marks, skip_special=skip_special)
        self._reader = reading.reader(
            inside_reasoning=inside_reasoning and reading.reasoning is not None,
            schemas=schemas if reading.tools is not None else None,
            one_call=one_call,
            new_id=new_id,
        )
        self._includes_reasoning = includes_reasoning
        self.has_calls = False

    def take(self, token_ids: Sequence[int], text: str, *, final: bool) -> AnswerParts:
        """Return the parts that an output, or a whole answer, adds."""
        pieces = self._text.take(token_ids, text, final=final)
        return self._told(self._reader.take(pieces, final=final))

    def take_each(
        self, token_ids: Sequence[int], text: str, *, final: bool
    ) -> Iterator[AnswerParts]:
        """Yield the parts in the order of the text: one for each mark and each text between."""
        for piece in self._text.take(token_ids, text, final=final):
            yield self._told(self._reader.take([piece], final=False))
        if final:
            yield self._told(self._reader.take([], final=True))

    def _told(self, parts: AnswerParts) -> AnswerParts:
        if not self._includes_reasoning:
            parts.reasoning = ""
        self.has_calls |= bool(parts.calls)
        return parts


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
