"""Plans a Responses request: its conversation, chat and prompt, and the engine request."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from convert.text.json_pieces import JsonText, json_bytes
from eagle3_jax.engine import Request
from serve.asgi.errors import ApiError, fields_renamed, invalid_request
from serve.asgi.json_body import refuse_too_much, templating
from serve.images.errors import BadImage, ImagesBusy
from serve.images.reader import ImageReader
from serve.images.sources import ImageSource
from serve.openai.chat import plan_chat, read_images
from serve.openai.content import as_errors
from serve.openai.protocol import ChatCompletionRequest
from serve.openai.service import Service
from serve.responses.as_chat import as_chat, chat_messages
from serve.responses.body import repeated_fields
from serve.responses.items import (
    CallOutputItem,
    InputImage,
    Item,
    ItemReference,
    MessageItem,
    read_items,
)
from serve.responses.protocol import ResponseRequest
from serve.responses.store import ResponseStore, StoredTurn

Planned = tuple[tuple[Request, ...], int | None]
TOO_LONG = "context_length_exceeded"


async def plan_truncated(
    service: Service, chat: ChatCompletionRequest, client: str, *, truncates: bool
) -> Planned:
    """Plan a chat like `plan_chat`. With `truncates`, drop old messages of one that is too long.

    As few as possible are dropped, and never an initial system message. The first message kept
    after it is a user message, so that no tool result loses its call.
    """
    images = await read_images(service, chat.messages, client)
    try:
        return await plan_chat(service, chat, images, client=client)
    except ApiError as error:
        if error.code != TOO_LONG or not truncates:
            raise
        too_long = error
    head = 1 if chat.messages[0].role == "system" else 0
    cuts = [i for i, m in enumerate(chat.messages) if i > head and m.role == "user"]
    fewest, most = 0, len(cuts)
    planned: Planned | None = None
    while fewest < most:
        middle = (fewest + most) // 2
        kept = [*chat.messages[:head], *chat.messages[cuts[middle] :]]
        shorter = chat.model_copy(update={"messages": kept})
        try:
            planned, most = await plan_chat(service, shorter, images, client=client), middle
        except ApiError as error:
            if error.code != TOO_LONG:
                raise
            fewest = middle + 1
    if planned is None:
        raise too_long
    return planned


NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Chat fields that have another name in Responses."""


@dataclass(frozen=True)
class StoredContext:
    """The stored turn that a request continues, and stored items that it refers to, by id.

    `room` is the limit in bytes of both together. An item counts as often as the request names it.
    """

    previous: StoredTurn | None
    referred: dict[str, StoredTurn]
    room: int


@dataclass(frozen=True)
class PlannedResponse:
    """A planned response. The token `end_of_reasoning` ends reasoning left open by the prompt.

    `inputs` are the request's own items in stored form. The answer repeats `repeated`.
    """

    chat: ChatCompletionRequest
    request: Request
    end_of_reasoning: int | None
    inputs: bytes
    repeated: dict[str, JsonText]


def look_up(store: ResponseStore, owner: bytes, body: ResponseRequest, room: int) -> StoredContext:
    """Return the stored data that a request refers to.

    Raises 404 for data that its key does not have, 400 for a conversation larger than `room` bytes.
    """
    previous, referred = None, dict[str, StoredTurn]()
    if body.previous_response_id is not None:
        previous = store.get(owner, body.previous_response_id, "previous_response_id")
    for item in body.input or ():
        if isinstance(item, ItemReference) and item.id not in referred:
            run = item.id.partition("_")[2].rpartition("_")[0]
            referred[item.id] = store.get(owner, f"resp_{run}", "input")
    stored = previous.total_size if previous else 0
    if stored > room:
        found = f"the conversation so far has {stored} bytes"
        raise _too_large("previous_response_id", found, room)
    return StoredContext(previous, referred, room - stored)


async def plan_response(
    service: Service, body: ResponseRequest, before: StoredContext, client: str
) -> PlannedResponse:
    """Plan a client's request in threads. Raises ApiError for one that cannot run."""
    with fields_renamed(NAMES):
        if body.store is not False and isinstance(service.images, ImageReader):
            left = await _hold_images(service.images, body.input or (), before.room)
            before = replace(before, room=left)
        chat, inputs, repeated = await templating(partial(_translate, body, before))
        truncates = body.truncation == "auto"
        requests, end_of_reasoning = await plan_truncated(
            service, chat, client, truncates=truncates
        )
        (request,) = await service.compile_grammars(requests)
    return PlannedResponse(chat, request, end_of_reasoning, inputs, repeated)


async def _hold_images(
    reader: ImageReader, items: Sequence[Item | ItemReference], room: int
) -> int:
    """Replace image URLs of a request by their data, so that stored images never change.

    Each image is loaded and kept once. Raises 400 if the data, counted as often as it is named,
    exceeds `room` bytes. Returns the remaining room.
    """
    contents = [item.content for item in items if isinstance(item, MessageItem)]
    contents += [item.output for item in items if isinstance(item, CallOutputItem)]
    lists = [content for content in contents if isinstance(content, list)]
    images = [part for parts in lists for part in parts if isinstance(part, InputImage)]
    named = Counter(image.image_url for image in images if not image.source.is_data)
    held, left = dict[str, str](), room
    try:
        reader.check_number(len(images))
        for url, times in named.items():
            held[url] = await reader.as_data(ImageSource(url))
            if (left := left - times * len(held[url])) < 0:
                found = f"the images named by URL have {room - left} bytes or more once stored"
                raise _too_large("input", f"{found} (store: false keeps none)", room)
    except (BadImage, ImagesBusy) as error:
        raise as_errors(error) from error
    for image in images:
        image.image_url = held.get(image.image_url, image.image_url)
    return left


def _translate(
    body: ResponseRequest, before: StoredContext
) -> tuple[ChatCompletionRequest, bytes, dict[str, JsonText]]:
    """Return the conversation's chat, the request's items in stored form, and its parameters."""
    earlier, inputs = _items(body, before)
    chat = as_chat(body, chat_messages(body.instructions, [*earlier, *inputs]))
    stored = [item.model_dump(exclude_none=True) for item in inputs]
    return chat, json_bytes(stored), repeated_fields(body)


def _items(body: ResponseRequest, before: StoredContext) -> tuple[list[Item], list[Item]]:
    """Return the items of the conversation so far, and those of the request without references.

    Raises 400, before an item is built, if they exceed the limits of a body. An item counts as
    often as it is named, and is built once.
    """
    turns = before.previous.conversation() if before.previous else []
    earlier = [text for turn in turns for text in (turn.inputs, turn.outputs)]
    stored = _stored(before)
    names = [item.id for item in body.input or () if isinstance(item, ItemReference)]
    if missing := next((name for name in names if name not in stored), None):
        raise ApiError(404, f"there is no item {missing!r}", param="input", code="item_not_found")
    named = [stored[name] for name in names]
    if (size := sum(map(len, named))) > before.room:
        raise _too_large("input", f"the items referred to have {size} bytes", before.room)
    refuse_too_much([*earlier, *named])
    built = {name: read_items(b"[%b]" % stored[name])[0] for name in set(names)}
    inputs = [built[i.id] if isinstance(i, ItemReference) else i for i in body.input or ()]
    return [item for text in earlier for item in read_items(text)], inputs


def _stored(before: StoredContext) -> dict[str, bytes]:
    """Return the items of the referred turns, by id, as JSON. Raises 400 for too many."""
    texts = [turn.outputs for turn in dict.fromkeys(before.referred.values())]
    if (size := sum(map(len, texts))) > before.room:
        raise _too_large("input", f"the responses referred to have {size} bytes", before.room)
    refuse_too_much(texts)
    return {item["id"]: json_bytes(item) for text in texts for item in json.loads(text)}


def _too_large(param: str, found: str, room: int) -> ApiError:
    message = (
        f"{found}; all that a body refers to may have {room} bytes here (--max-body-size, less the "
        "size of the body)"
    )
    return invalid_request(message, param=param)
