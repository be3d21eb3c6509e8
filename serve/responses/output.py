"""The output items of a response while they grow, and their events."""

from collections.abc import Collection, Iterator
from typing import Any, ClassVar, Literal

from serve.chat_format.parts import AnswerParts, CallPart
from serve.responses.items import sealed
from serve.responses.tools import own_name

Event = tuple[str, dict[str, Any]]
"""Type of an event, and its fields without the sequence number."""


def without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    """Return an output item as later requests read it."""
    parts = [{**part, "logprobs": []} for part in item.get("content", ()) if "logprobs" in part]
    return {**item, "content": parts} if parts else item


Status = Literal["in_progress", "completed", "incomplete"]


class _Growing:
    """A growing output item. `index` is its position in the output."""

    prefix: ClassVar[str]
    grows: ClassVar[str]
    """Middle part of the names of its events."""
    whole: ClassVar[str]
    """Field with the complete text in its last event."""

    def __init__(self, run: str, index: int) -> None:
        self.id = f"{self.prefix}_{run}_{index}"
        self.at = {"item_id": self.id, "output_index": index}
        self._index = index
        self._pieces: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def item(self, status: Status) -> dict[str, Any]:
        """Return the item so far."""
        raise NotImplementedError

    def opened(self) -> Iterator[Event]:
        """Yield the events of a new, empty item."""
        item = self.item("in_progress")
        yield "response.output_item.added", {"output_index": self._index, "item": item}

    def grown(self, text: str, **more: Any) -> Iterator[Event]:
        """Append text, and yield the event."""
        self._pieces.append(text)
        yield f"response.{self.grows}.delta", {**self.at, "delta": text, **more}

    def closed(self, status: Status, **more: Any) -> Iterator[Event]:
        """Yield the events of the item's end."""
        yield f"response.{self.grows}.done", {**self.at, self.whole: self.text, **more}
        item = self.item(status)
        yield "response.output_item.done", {"output_index": self._index, "item": item}


class _Part(_Growing):
    """A growing item with its text in a single part."""

    whole = "text"

    def __init__(self, run: str, index: int) -> None:
        super().__init__(run, index)
        self.at["content_index"] = 0
        self.logprobs: list[Any] = []

    def part(self) -> dict[str, Any]:
        """Return the part so far."""
        raise NotImplementedError

    def opened(self) -> Iterator[Event]:
        yield from super().opened()
        yield "response.content_part.added", {**self.at, "part": self.part()}

    def closed(self, status: Status, **more: Any) -> Iterator[Event]:
        done, item_done = super().closed(status, **more)
        yield done
        yield "response.content_part.done", {**self.at, "part": self.part()}
        yield item_done


class _Reasoning(_Part):
    prefix, grows = "rs", "reasoning_text"

    def __init__(self, run: str, index: int, *, seals: bool) -> None:
        super().__init__(run, index)
        self._seals = seals

    def part(self) -> dict[str, Any]:
        return {"type": "reasoning_text", "text": self.text}

    def item(self, status: Status) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part()]
        item = {"id": self.id, "type": "reasoning", "summary": [], "content": content}
        secret = {"encrypted_content": sealed(self.text)} if self._seals else {}
        return {**item, **secret, "status": status}


class _Message(_Part):
    prefix, grows = "msg", "output_text"

    def part(self) -> dict[str, Any]:
        text = {"type": "output_text", "text": self.text}
        return {**text, "annotations": [], "logprobs": list(self.logprobs)}

    def item(self, status: Status) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self.part()]
        item = {"id": self.id, "type": "message", "role": "assistant"}
        return {**item, "status": status, "content": content}

    def grown(self, text: str, **more: Any) -> Iterator[Event]:
        self.logprobs += more.get("logprobs", [])
        return super().grown(text, **more)

    def closed(self, status: Status, **more: Any) -> Iterator[Event]:
        return super().closed(status, logprobs=list(self.logprobs), **more)


class _Call(_Growing):
    prefix, grows, whole = "fc", "function_call_arguments", "arguments"

    def __init__(self, run: str, index: int, call: CallPart, namespaces: Collection[str]) -> None:
        super().__init__(run, index)
        self._call = {"call_id": call.id, **own_name(call.name or "", namespaces)}

    def item(self, status: Status) -> dict[str, Any]:
        call = {"id": self.id, "type": "function_call", **self._call}
        return {**call, "arguments": self.text, "status": status}

    def closed(self, status: Status, **more: Any) -> Iterator[Event]:
        return super().closed(status, name=self._call["name"], **more)


class Output:
    """Builds the output items of one answer. One item grows at a time.

    Text after the start of calls, which could not be parsed as a call, becomes a final message, so
    that the items do not depend on how the answer was split into outputs. `run` is part of the
    items' ids. With `seals`, reasoning also has `encrypted_content`. `namespaces` are those of the
    tools.
    """

    def __init__(self, run: str, *, seals: bool, namespaces: Collection[str] = ()) -> None:
        self.items: list[dict[str, Any]] = []
        """Completed items."""
        self._run, self._seals, self._namespaces = run, seals, namespaces
        self._open: _Growing | None = None
        self._place: str | int | None = None
        self._logprobs: list[Any] = []
        self._has_calls = False
        self._late = ""

    def take(self, parts: AnswerParts, logprobs: list[Any]) -> Iterator[Event]:
        """Add a part of the answer. `logprobs` are those of content whose text may come later."""
        self._logprobs += logprobs
        self._has_calls |= bool(parts.calls)
        if parts.reasoning:
            yield from self._turn_to("reasoning")
            yield from self._grow(parts.reasoning)
        if self._has_calls:
            self._late += parts.content
        elif parts.content:
            yield from self._say(parts.content)
        for place, call in parts.calls.items():
            yield from self._turn_to(place, call)
            if call.arguments:
                yield from self._grow(call.arguments)

    def end(self, status: Status) -> Iterator[Event]:
        """End the answer. An item that still grows gets this status."""
        if self._open is None and not self.items:
            yield from self._turn_to("content")
        yield from self._close(status)
        if self._late:
            yield from self._say(self._late)
            yield from self._close(status)

    def _say(self, text: str) -> Iterator[Event]:
        yield from self._turn_to("content")
        fresh, self._logprobs = self._logprobs, []
        yield from self._grow(text, logprobs=fresh)

    def _turn_to(self, place: str | int, call: CallPart | None = None) -> Iterator[Event]:
        if place == self._place:
            return
        yield from self._close("completed")
        index = len(self.items)
        if call is not None:
            self._open = _Call(self._run, index, call, self._namespaces)
        elif place == "reasoning":
            self._open = _Reasoning(self._run, index, seals=self._seals)
        else:
            self._open = _Message(self._run, index)
        self._place = place
        yield from self._open.opened()

    def _grow(self, text: str, **more: Any) -> Iterator[Event]:
        assert self._open is not None
        return self._open.grown(text, **more)

    def _close(self, status: Status) -> Iterator[Event]:
        if self._open is not None:
            yield from self._open.closed(status)
            self.items.append(self._open.item(status))
        self._open = self._place = None
