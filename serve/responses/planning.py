"""From a Responses request to the engine's: the conversation, its chat, its prompt."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from eagle3_jax.engine import Request
from serve.asgi.errors import ApiError, as_api_error, from_validation, invalid_request
from serve.asgi.json_body import refuse_too_much
from serve.asgi.long_texts import templating
from serve.engine.errors import Refused
from serve.images.errors import BadImage
from serve.images.reader import ImageReader
from serve.openai.content import as_errors
from serve.openai.protocol import ChatCompletionRequest
from serve.openai.service import Service
from serve.responses.as_chat import as_chat, chat_messages
from serve.responses.body import asked
from serve.responses.items import (
    CallOutputItem,
    InputImage,
    Item,
    ItemReference,
    MessageItem,
    read_items,
)
from serve.responses.protocol import ResponseRequest
from serve.responses.store import MOST_BEHIND, ResponseStore, Turn
from serve.responses.truncation import plan_truncated

NAMES = {
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
}
"""Fields of chats that have another name here."""


@dataclass(frozen=True)
class Before:
    """What a request refers to: the turn it goes on from, and stored items by their ids."""

    previous: Turn | None
    referred: dict[str, Turn]


@dataclass(frozen=True)
class PlannedResponse:
    """end_of_reasoning: the id that ends the reasoning in which the prompt ends, if it does.
    inputs: the request's own items, as they are stored. asked: what the answer repeats."""

    chat: ChatCompletionRequest
    request: Request
    end_of_reasoning: int | None
    inputs: bytes
    asked: dict[str, Any]


def look_up(store: ResponseStore, owner: bytes, body: ResponseRequest) -> Before:
    """Finds what the request refers to; raises 404 for what its key has not."""
    previous, referred = None, dict[str, Turn]()
    if body.previous_response_id is not None:
        previous = store.get(owner, body.previous_response_id, "previous_response_id")
    for item in body.input or ():
        if isinstance(item, ItemReference) and item.id not in referred:
            run = item.id.partition("_")[2].rpartition("_")[0]
            referred[item.id] = store.get(owner, f"resp_{run}", "input")
    return Before(previous, referred)


async def plan_response(service: Service, body: ResponseRequest, before: Before) -> PlannedResponse:
    """The engine's requests, made in threads; raises ApiError for what can't run."""
    with _under_our_names(body):
        if body.store is not False and isinstance(service.images, ImageReader):
            await _hold_images(service.images, body.input or ())
        chat, inputs, repeated = await templating(partial(_translate, body, before))
        truncates = body.truncation == "auto"
        requests, end_of_reasoning = await plan_truncated(service, chat, truncates=truncates)
        (request,) = await service.compile_grammars(requests)
    return PlannedResponse(chat, request, end_of_reasoning, inputs, repeated)


async def _hold_images(reader: ImageReader, items: Sequence[Item | ItemReference]) -> None:
    """Puts the images that a request names into it: what is stored stays as it was seen."""
    contents = [item.content for item in items if isinstance(item, MessageItem)]
    contents += [item.output for item in items if isinstance(item, CallOutputItem)]
    lists = [content for content in contents if isinstance(content, list)]
    images = [part for parts in lists for part in parts if isinstance(part, InputImage)]
    try:
        reader.check_number(len(images))
        for image in images:
            image.image_url = await reader.as_data(image.source)
    except BadImage as error:
        raise as_errors(error) from error


def _translate(
    body: ResponseRequest, before: Before
) -> tuple[ChatCompletionRequest, bytes, dict[str, Any]]:
    """The chat of the whole conversation, the request's own items as they are stored, and what its
    answer repeats."""
    inputs = _resolved(body, before.referred)
    chat = as_chat(body, chat_messages(body.instructions, [*_said(before.previous), *inputs]))
    stored = [item.model_dump(exclude_none=True) for item in inputs]
    return chat, json.dumps(stored).encode(), asked(body)


def _said(turn: Turn | None) -> list[Item]:
    """The items of a conversation so far; 400 where they are more than a body may have."""
    turns = turn.conversation() if turn else []
    texts = [text for turn in turns for text in (turn.inputs, turn.outputs)]
    refuse_too_much(texts)
    return [item for text in texts for item in read_items(text)]


def _resolved(body: ResponseRequest, referred: dict[str, Turn]) -> list[Item]:
    """The request's items, references replaced by what they stand for; each turn is read once."""
    texts = [turn.outputs for turn in dict.fromkeys(referred.values())]
    if sum(map(len, texts)) > MOST_BEHIND:
        message = f"the responses referred to have more than {MOST_BEHIND} bytes"
        raise invalid_request(message, param="input")
    refuse_too_much(texts)
    items = {item.id: item for text in texts for item in read_items(text)}
    if missing := next((name for name in referred if name not in items), None):
        raise ApiError(404, f"there is no item {missing!r}", param="input", code="item_not_found")
    return [
        items[item.id] if isinstance(item, ItemReference) else item for item in body.input or ()
    ]


@contextmanager
def _under_our_names(body: ResponseRequest) -> Iterator[None]:
    """Errors about a chat's fields name those of the request."""
    has_format = body.text is not None and body.text.format is not None
    names = NAMES | ({"structured_outputs": "text.format"} if has_format else {})
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[:1]
        raise _renamed(from_validation(RequestValidationError(first)), names) from error
    except ApiError as error:
        raise _renamed(error, names) from error
    except Refused as error:
        raise _renamed(as_api_error(error), names) from error


def _renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    if error.param is None or (name := names.get(error.param)) is None:
        return error
    return replace(error, param=name, message=error.message.replace(error.param, name))
