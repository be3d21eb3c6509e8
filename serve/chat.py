"""POST /v1/chat/completions."""

from typing import Any

import fastapi
from fastapi import APIRouter, Response

from eagle3_jax.engine import RequestOutput
from serve.answer import answer
from serve.choices import ChoiceState
from serve.errors import invalid_request
from serve.protocol import ChatCompletionRequest
from serve.responses import ChatChoice, ChatChunkChoice, Message
from serve.service import Service


class ChatForm:
    """Chat answers. The role comes with the first content, so that no chunk precedes a token."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prompt_ids_in_choice = False

    def whole(self, state: ChoiceState, shared: dict[str, Any]) -> ChatChoice:
        """A finished choice."""
        message = Message(role="assistant", content="".join(state.text))
        return ChatChoice(**shared, message=message)

    def piece(self, output: RequestOutput, first: bool, shared: dict[str, Any]) -> ChatChunkChoice:
        """One output of a choice."""
        text = output.text
        delta = Message(role="assistant", content=text) if first else Message(content=text)
        return ChatChunkChoice(**shared, delta=delta)


def chat_router(service: Service) -> APIRouter:
    """The endpoint over `service`."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def create_chat_completion(
        body: ChatCompletionRequest, request: fastapi.Request
    ) -> Response:
        service.check_model(body.model)
        service.engine.check_admitting()
        prompt = _prompt_ids(service, body)
        return await answer(service, request, body, ChatForm(), [prompt], default_max_tokens=None)

    return router


def _prompt_ids(service: Service, body: ChatCompletionRequest) -> list[int]:
    options = body.chat_template_kwargs or {}
    try:
        return service.tokenizer.encode_chat(body.template_messages(), **options)
    # A TypeError comes from template options that are no options, such as `messages`.
    except (ValueError, TypeError) as error:
        raise invalid_request(str(error), param="messages") from error
