"""Reads the parts of one chat answer from its outputs as they come."""

from collections.abc import Callable, Iterator, Sequence
from uuid import uuid4

from serve.chat_format.format import ChatReading
from serve.chat_format.marked_text import MarkedText, TokenBytes
from serve.chat_format.parts import AnswerParts
from serve.chat_format.reader import Schemas


def new_call_id() -> str:
    """An id for a call whose model gives it none."""
    return f"call_{uuid4().hex[:24]}"


class AnswerParser:
    """Reads one answer. However its tokens were cut into outputs, what they add is the same.

    inside_reasoning: whether the prompt ends inside the reasoning. schemas: of the arguments of
    the functions on offer, None where none are. one_call: leaves out what follows the first call.
    tells_reasoning: False leaves the reasoning out. skip_special: whether the text leaves special
    tokens out.
    """

    def __init__(
        self,
        tokenizer: TokenBytes,
        reading: ChatReading,
        *,
        inside_reasoning: bool,
        schemas: Schemas | None,
        one_call: bool = False,
        tells_reasoning: bool = True,
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
        self._tells_reasoning = tells_reasoning
        self.has_calls = False

    def take(self, token_ids: Sequence[int], text: str, *, final: bool) -> AnswerParts:
        """What an output, or a whole answer, adds to the answer."""
        pieces = self._text.take(token_ids, text, final=final)
        return self._told(self._reader.take(pieces, final=final))

    def take_each(
        self, token_ids: Sequence[int], text: str, *, final: bool
    ) -> Iterator[AnswerParts]:
        """The same in the order in which it was written: of each mark, and the text before it."""
        for piece in self._text.take(token_ids, text, final=final):
            yield self._told(self._reader.take([piece], final=False))
        if final:
            yield self._told(self._reader.take([], final=True))

    def _told(self, parts: AnswerParts) -> AnswerParts:
        if not self._tells_reasoning:
            parts.reasoning = ""
        self.has_calls |= bool(parts.calls)
        return parts
