"""The output items of a response while they grow, and their events."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from serve.chat_format.parts import AnswerParts, CallPart
from serve.openai.answer_items import AnswerItems, Event, Place
from serve.responses.items import sealed
from serve.responses.tools import own_name

Status = Literal["in_progress", "completed", "incomplete"]
KINDS: dict[Place, tuple[str, str]] = {
    "reasoning": ("rs", "reasoning_text"),
    "content": ("msg", "output_text"),
}
CALL = ("fc", "function_call_arguments")
"""Prefix of an item's id, and the middle part of the names of its events."""


def without_logprobs(item: dict[str, Any]) -> dict[str, Any]:
    """Return an output item as later requests read it."""
    parts = [{**part, "logprobs": []} for part in item.get("content", ()) if "logprobs" in part]
    return {**item, "content": parts} if parts else item


class OutputItems(AnswerItems):
    """The output items of one answer.

    Args:
        run: a part of the items' ids.
        seals: whether reasoning also has `encrypted_content`.
        namespaces: those of the tools.
    """

    def __init__(self, run: str, *, seals: bool, namespaces: Collection[str] = ()) -> None:
        super().__init__()
        self._run, self._seals, self._namespaces = run, seals, namespaces
        self._logprobs: list[Any] = []  # those of content whose text may come later
        self._call: dict[str, Any] = {}

    def take(self, parts: AnswerParts, logprobs: Sequence[Any] = ()) -> Iterator[Event]:
        """Add a part of the answer. `logprobs` are those of content whose text may come later."""
        self._logprobs += logprobs
        return super().take(parts)

    def end(self, *, cut: bool) -> Iterator[Event]:
        """End the answer, which has one item at least."""
        if self._place is None and not self.items:
            yield from self._turn_to("content")
        yield from super().end(cut=cut)

    def _begin(self, place: Place, call: CallPart | None) -> Iterator[Event]:
        prefix, self._grows = KINDS.get(place, CALL)
        index = len(self.items)
        self._id = f"{prefix}_{self._run}_{index}"
        self._at: dict[str, Any] = {"item_id": self._id, "output_index": index}
        self._texts: list[str] = []
        self._told: list[Any] = []  # log-probabilities of this item
        if call is not None:
            self._call = {"call_id": call.id, **own_name(call.name or "", self._namespaces)}
        item = self._item("in_progress")
        yield {"type": "response.output_item.added", "output_index": index, "item": item}
        if call is None:
            self._at["content_index"] = 0
            yield {"type": "response.content_part.added", **self._at, "part": self._part()}

    def _grow(self, text: str) -> Iterator[Event]:
        self._texts.append(text)
        event = {"type": f"response.{self._grows}.delta", **self._at, "delta": text}
        if self._place == "content":
            event["logprobs"], self._logprobs = self._logprobs, []
            self._told += event["logprobs"]
        yield event

    def _close(self, *, cut: bool) -> Iterator[Event]:
        item = self._item("incomplete" if cut else "completed")
        event = {"type": f"response.{self._grows}.done", **self._at}
        if isinstance(self._place, int):
            yield {**event, "arguments": self._text, "name": self._call["name"]}
        else:
            logprobs = {"logprobs": list(self._told)} if self._place == "content" else {}
            yield {**event, "text": self._text, **logprobs}
            yield {"type": "response.content_part.done", **self._at, "part": self._part()}
        index = len(self.items)
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
        self.items.append(item)

    @property
    def _text(self) -> str:
        return "".join(self._texts)

    def _item(self, status: Status) -> dict[str, Any]:
        if isinstance(self._place, int):
            call = {"id": self._id, "type": "function_call", **self._call}
            return {**call, "arguments": self._text, "status": status}
        content = [] if status == "in_progress" else [self._part()]
        if self._place == "content":
            item = {"id": self._id, "type": "message", "role": "assistant"}
            return {**item, "status": status, "content": content}
        item = {"id": self._id, "type": "reasoning", "summary": [], "content": content}
        secret = {"encrypted_content": sealed(self._text)} if self._seals else {}
        return {**item, **secret, "status": status}

    def _part(self) -> dict[str, Any]:
        """Return the text of the growing item as its only part."""
        if self._place == "reasoning":
            return {"type": "reasoning_text", "text": self._text}
        text = {"type": "output_text", "text": self._text}
        return {**text, "annotations": [], "logprobs": list(self._told)}
