"""Lists the input items of a stored response."""

import json
from collections.abc import Iterator
from typing import Any, Literal

from serve.asgi.errors import invalid_request
from serve.responses.items import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    TextOrParts,
    read_items,
)
from serve.responses.store import StoredTurn

Order = Literal["asc", "desc"]


def input_items(turn: StoredTurn, after: str | None, limit: int, order: Order) -> str:
    """Return at most `limit` items after the one with id `after` as JSON, earlier turns included.

    The newest come first unless the order is "asc".
    """
    items = list(_all(turn))[:: 1 if order == "asc" else -1]
    begin = 0
    if after is not None:
        found = (i for i, item in enumerate(items) if item["id"] == after)
        if (place := next(found, None)) is None:
            raise invalid_request(f"after: there is no item {after[:100]!r}", param="after")
        begin = place + 1
    page = items[begin : begin + limit]
    ends = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
    more = begin + limit < len(items)
    return json.dumps({"object": "list", "data": page, "has_more": more, **ends})


def _all(turn: StoredTurn) -> Iterator[dict[str, Any]]:
    for earlier in turn.conversation():
        run = earlier.response_id.partition("_")[2]
        for n, item in enumerate(read_items(earlier.inputs)):
            yield _listed(item, f"{PREFIX[item.type]}_{run}_in{n}")
        if earlier is not turn:
            for item in read_items(earlier.outputs):
                yield _listed(item, str(item.id))


PREFIX = {"message": "msg", "reasoning": "rs", "function_call": "fc", "function_call_output": "fco"}


def _listed(item: Item, item_id: str) -> dict[str, Any]:
    fields: dict[str, Any] = {"id": item_id, "type": item.type, "status": "completed"}
    match item:
        case MessageItem(role="assistant"):
            part = {"type": "output_text", "text": item.content, "annotations": []}
            return {**fields, "role": item.role, "content": [part]}
        case MessageItem(content=str(text)):
            part = {"type": "input_text", "text": text}
            return {**fields, "role": item.role, "content": [part]}
        case MessageItem():
            return {**fields, "role": item.role, "content": _parts(item.content)}
        case ReasoningItem():
            part = {"type": "reasoning_text", "text": item.content or ""}
            return {**fields, "summary": [], "content": [part]}
        case CallItem():
            call = {"call_id": item.call_id, "name": item.name, "arguments": item.arguments}
            within = {"namespace": item.namespace} if item.namespace else {}
            return {**fields, **call, **within}
        case CallOutputItem():
            output = item.output if isinstance(item.output, str) else _parts(item.output)
            return {**fields, "call_id": item.call_id, "output": output}


def _parts(parts: TextOrParts) -> list[dict[str, Any]]:
    return [part.model_dump() for part in parts if not isinstance(part, str)]
