"""Builds the content blocks of an answer and their events."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from serve.anthropic.thinking import signature
from serve.chat_format.call_arguments import read_arguments
from serve.chat_format.parts import AnswerParts

NamedEvent = dict[str, Any]
"""An event; its `type` is its name."""


class Content:
    """Converts an answer's parts to blocks. `shows_thinking`: with the reasoning.

    Text between calls goes after all calls, so that the blocks do not depend on how the answer was
    split into parts.
    """

    def __init__(self, *, shows_thinking: bool) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._shows_thinking = shows_thinking
        self._open = ""  # type of the open block
        self._texts: list[str] = []  # its text so far
        self._has_calls = False
        self._late = ""  # text to add after the calls

    def take(self, parts: AnswerParts) -> Iterator[NamedEvent]:
        """Add parts of the answer, and yield their events."""
        self._has_calls |= bool(parts.calls)
        if parts.reasoning:
            if self._open != "thinking":
                yield from self._begin(type="thinking", thinking="", signature="")
            self._texts.append(parts.reasoning)
            if self._shows_thinking:
                yield self._delta(type="thinking_delta", thinking=parts.reasoning)
        if self._has_calls:
            self._late += parts.content
        elif parts.content:
            yield from self._text(parts.content)
        for call in parts.calls.values():
            if call.id is not None:
                yield from self._begin(type="tool_use", id=call.id, name=call.name, input={})
            if call.arguments:
                self._texts.append(call.arguments)
                yield self._delta(type="input_json_delta", partial_json=call.arguments)

    def end(self, *, cut: bool) -> Iterator[NamedEvent]:
        """End the answer. `cut`: the model did not end it."""
        yield from self._end_block(cut=cut)
        if self._late:
            yield from self._text(self._late)
            yield from self._end_block()

    def _text(self, text: str) -> Iterator[NamedEvent]:
        if self._open != "text":
            yield from self._begin(type="text", text="")
        self._texts.append(text)
        yield self._delta(type="text_delta", text=text)

    def _end_block(self, *, cut: bool = False) -> Iterator[NamedEvent]:
        text = "".join(self._texts)
        match self._open:
            case "":
                return
            case "thinking":
                signed = signature(text, shown=self._shows_thinking)
                shown = text if self._shows_thinking else ""
                self.blocks[-1] |= {"thinking": shown, "signature": signed}
                yield self._delta(type="signature_delta", signature=signed)
            case "text":
                self.blocks[-1]["text"] = text
            case _:
                self.blocks[-1]["input"] = read_input(text, cut=cut)
        yield {"type": "content_block_stop", "index": len(self.blocks) - 1}
        self._open = ""

    def _begin(self, **block: Any) -> Iterator[NamedEvent]:
        yield from self._end_block()
        self.blocks.append(block)
        self._open, self._texts = block["type"], []
        begun = dict(block)
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": begun}

    def _delta(self, **delta: Any) -> NamedEvent:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


def read_input(arguments: str, *, cut: bool) -> dict[str, Any]:
    """Parse the arguments of a call; if they were cut off, as far as possible."""
    if cut:
        with suppress(ValueError):
            read = from_json(arguments or "{}", allow_inf_nan=False, allow_partial=True)
            if isinstance(read, dict):
                return read
    return read_arguments(arguments)
