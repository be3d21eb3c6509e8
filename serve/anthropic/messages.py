"""HTTP endpoints: POST /v1/messages, POST /v1/messages/count_tokens."""

from functools import partial

import fastapi
from fastapi import APIRouter, Response
from pydantic import BaseModel
from starlette.datastructures import Headers

from serve.anthropic.answer import MessageAnswer
from serve.anthropic.content import ContentBlocks
from serve.anthropic.protocol import NAMES, Conversation, MessagesRequest
from serve.asgi.auth import client_of
from serve.asgi.errors import fields_renamed, invalid_request
from serve.asgi.json_body import JsonRoute, templating
from serve.asgi.sse import synthetic_field
from serve.engine.choices import Choices
from serve.openai.answer import respond
from serve.openai.chat import answer_parser, chat_prompt, plan_chat, read_images
from serve.openai.service import Service
from serve.openai.thinking_variables import keep_header
from serve.openai.tokenization import CONTEXTS

VERSIONS = ("2023-06-01", "2026-10-21")
"""Supported versions, which have the same message format."""
NOT_HERE = ("anthropic-user-profile-id", "anthropic-workspace-id")


def check_headers(headers: Headers) -> None:
    """Raise 400 for another protocol version, or a header for an unsupported feature."""
    version = headers.get("anthropic-version", VERSIONS[0])
    if version not in VERSIONS:
        known = " and ".join(VERSIONS)
        message = f"anthropic-version: this server speaks {known}; got {version[:50]!r}"
        raise invalid_request(message, param="anthropic-version", code="unsupported_option")
    for name in NOT_HERE:
        if name in headers:
            message = f"{name} is not implemented in this release; leave it out"
            raise invalid_request(message, param=name, code="unsupported_option")


class TokensCount(BaseModel):
    """The answer of count_tokens: the number of tokens of a prompt."""

    input_tokens: int


def messages_router(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/messages")
    async def create_message(body: MessagesRequest, request: fastapi.Request) -> Response:
        check_headers(request.headers)
        with fields_renamed(NAMES):
            requests, end_of_reasoning = await plan_chat(
                service, body.chat, client=client_of(request).name
            )
            (planned,) = await service.compile_grammars(requests)
        answer = MessageAnswer(
            Choices([planned], 1, prompt_only=body.chat.prompt_only),
            answer_parser(service, body.chat, end_of_reasoning),
            ContentBlocks(shows_thinking=body.shows_thinking),
            limit=body.max_tokens,
            model=body.model or service.model.names[0],
            request_id=request.state.record.request_id,
            synthetic=synthetic_field(service.engine.stats),
        )
        response = await respond(service, request, answer, streamed=bool(body.stream))
        response.headers.update(keep_header(service, body.chat))
        return response

    @router.post("/v1/messages/count_tokens", response_model=TokensCount)
    async def count_tokens(body: Conversation, request: fastapi.Request) -> TokensCount:
        check_headers(request.headers)
        service.check_model(body.model)
        images = await read_images(service, body.chat.messages, client_of(request).name)
        work = partial(chat_prompt, service, body.chat, images, CONTEXTS)
        return TokensCount(input_tokens=len((await templating(work)).ids))

    return router
