"""Content blocks of an answer, whole and as events of a stream."""

from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

from serve.anthropic.thinking import signature
from serve.chat_format.parts import AnswerParts, CallPart

NamedEvent = dict[str, Any]
"""An event; its `type` is its name."""


def whole_content(parts: AnswerParts, *, shows_thinking: bool) -> list[dict[str, Any]]:
    """The blocks of a whole answer."""
    blocks: list[dict[str, Any]] = []
    if parts.reasoning:
        signed = signature(parts.reasoning, shown=shows_thinking)
        thinking = parts.reasoning if shows_thinking else ""
        blocks.append({"type": "thinking", "thinking": thinking, "signature": signed})
    if parts.content:
        blocks.append({"type": "text", "text": parts.content})
    return blocks + [
        _call(call) | {"input": _input(call.arguments)} for call in parts.calls.values()
    ]


def _call(call: CallPart) -> dict[str, Any]:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": {}}


def _input(arguments: str) -> dict[str, Any]:
    """The arguments of a call as far as they go, if they were cut; where they are no JSON object,
    the text under the key that the protocol's guide has for it."""
    try:
        read = from_json(arguments or "{}", allow_partial=True)
    except ValueError:
        read = None
    return read if isinstance(read, dict) else {"INVALID_JSON": arguments}


class ContentEvents:
    """The events of an answer's blocks, of its parts as they come."""

    def __init__(self, *, shows_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._index = -1
        self._open = ""  # the type of the block under way
        self._thoughts = ""

    def take(self, parts: AnswerParts) -> Iterator[NamedEvent]:
        """What these parts add."""
        if parts.reasoning:
            yield from self._thinking(parts.reasoning)
        if parts.content:
            if self._open != "text":
                yield from self._begin({"type": "text", "text": ""})
            yield self._delta(type="text_delta", text=parts.content)
        for call in parts.calls.values():
            if call.id is not None:
                yield from self._begin(_call(call))
            if call.arguments:
                yield self._delta(type="input_json_delta", partial_json=call.arguments)

    def end(self) -> Iterator[NamedEvent]:
        """Ends the block under way, if there is one."""
        if self._open == "thinking":
            signed = signature(self._thoughts, shown=self._shows_thinking)
            yield self._delta(type="signature_delta", signature=signed)
        if self._open:
            yield {"type": "content_block_stop", "index": self._index}
        self._open = ""

    def _thinking(self, text: str) -> Iterator[NamedEvent]:
        if self._open != "thinking":
            yield from self._begin({"type": "thinking", "thinking": "", "signature": ""})
        self._thoughts += text
        if self._shows_thinking:
            yield self._delta(type="thinking_delta", thinking=text)

    def _begin(self, block: dict[str, Any]) -> Iterator[NamedEvent]:
        yield from self.end()
        self._index += 1
        self._open, self._thoughts = block["type"], ""
        yield {"type": "content_block_start", "index": self._index, "content_block": block}

    def _delta(self, **delta: Any) -> NamedEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": delta}
