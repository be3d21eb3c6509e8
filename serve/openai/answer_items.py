"""Puts the parts of an answer in order, for protocols whose answers are lists of items."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

from serve.chat_format.parts import AnswerParts, CallPart

Event = dict[str, Any]
"""A server-sent event; its `type` is its name."""
Place = Literal["reasoning", "content"] | int
"""An item: reasoning, content, or the index of a call."""


class AnswerItems(ABC):
    """Base of the items of one answer. One item grows at a time.

    Text after the start of calls, which could not be parsed as a call, becomes a final item of
    content, so that the items do not depend on how the answer was split into outputs.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._place: Place | None = None
        self._has_calls = False
        self._late = ""

    def take(self, parts: AnswerParts) -> Iterator[Event]:
        """Add a part of the answer, and yield its events."""
        self._has_calls |= bool(parts.calls)
        if parts.reasoning:
            yield from self._turn_to("reasoning")
            yield from self._grow(parts.reasoning)
        if self._has_calls:
            self._late += parts.content
        elif parts.content:
            yield from self._add_text(parts.content)
        for place, call in parts.calls.items():
            yield from self._turn_to(place, call)
            if call.arguments:
                yield from self._grow(call.arguments)

    def end(self, *, cut: bool) -> Iterator[Event]:
        """End the answer. `cut`: the model did not end it."""
        yield from self._finish(cut=cut)
        if self._late:
            yield from self._add_text(self._late)
            yield from self._finish(cut=cut)

    def _add_text(self, text: str) -> Iterator[Event]:
        yield from self._turn_to("content")
        yield from self._grow(text)

    def _turn_to(self, place: Place, call: CallPart | None = None) -> Iterator[Event]:
        if place != self._place:
            yield from self._finish(cut=False)
            self._place = place
            yield from self._begin(place, call)

    def _finish(self, *, cut: bool) -> Iterator[Event]:
        if self._place is not None:
            yield from self._close(cut=cut)
        self._place = None

    @abstractmethod
    def _begin(self, place: Place, call: CallPart | None) -> Iterator[Event]:
        """Begin an empty item at `place`. `call` is the first part of a call."""

    @abstractmethod
    def _grow(self, text: str) -> Iterator[Event]:
        """Add text to the growing item, and yield its events."""

    @abstractmethod
    def _close(self, *, cut: bool) -> Iterator[Event]:
        """End the growing item."""
