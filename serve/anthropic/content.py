"""Builds the content blocks of an answer and their events."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from pydantic_core import from_json

from serve.anthropic.thinking import signature
from serve.chat_format.call_arguments import read_arguments
from serve.chat_format.parts import CallPart
from serve.openai.answer_items import AnswerItems, Event, Place


class ContentBlocks(AnswerItems):
    """The content blocks of one answer. `shows_thinking`: with the reasoning."""

    def __init__(self, *, shows_thinking: bool) -> None:
        super().__init__()
        self._shows_thinking = shows_thinking
        self._texts: list[str] = []  # the text of the growing block

    def _begin(self, place: Place, call: CallPart | None) -> Iterator[Event]:
        if call is not None:
            block = {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}
        elif place == "reasoning":
            block = {"type": "thinking", "thinking": "", "signature": ""}
        else:
            block = {"type": "text", "text": ""}
        self._texts = []
        self.items.append(block)
        yield self._event("content_block_start", content_block=dict(block))

    def _grow(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        if isinstance(self._place, int):
            yield self._delta(type="input_json_delta", partial_json=text)
        elif self._place == "content":
            yield self._delta(type="text_delta", text=text)
        elif self._shows_thinking:
            yield self._delta(type="thinking_delta", thinking=text)

    def _close(self, *, cut: bool) -> Iterator[Event]:
        block, text = self.items[-1], "".join(self._texts)
        if isinstance(self._place, int):
            block["input"] = read_input(text, cut=cut)
        elif self._place == "content":
            block["text"] = text
        else:
            block["signature"] = signature(text, shown=self._shows_thinking)
            block["thinking"] = text if self._shows_thinking else ""
            yield self._delta(type="signature_delta", signature=block["signature"])
        yield self._event("content_block_stop")

    def _delta(self, **delta: Any) -> Event:
        return self._event("content_block_delta", delta=delta)

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "index": len(self.items) - 1, **fields}


def read_input(arguments: str, *, cut: bool) -> dict[str, Any]:
    """Parse the arguments of a call; if they were cut off, as far as possible."""
    if cut:
        with suppress(ValueError):
            read = from_json(arguments or "{}", allow_inf_nan=False, allow_partial=True)
            if isinstance(read, dict):
                return read
    return read_arguments(arguments)
