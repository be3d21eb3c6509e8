"""POST /v1/chat/completions."""

from functools import partial
from typing import Any, Protocol

import fastapi
from fastapi import APIRouter, Response

from eagle3_jax.engine import RequestOutput
from eagle3_jax.structured_outputs import StructuredOutputs
from serve.answer import answer
from serve.choices import ChoiceState
from serve.errors import invalid_request
from serve.logprobs import ChatLogprobs, chat_logprobs
from serve.protocol import ChatCompletionRequest
from serve.reasoning import behind_reasoning
from serve.responses import ChatChoice, ChatChunkChoice, Message
from serve.service import Service, TokenizerLike
from serve.tool_calls import LogprobsOfPart, ToolCallForm
from serve.tools import SECTION_MARK


class TemplateInput(Protocol):
    """What a prompt is made of."""

    def template_messages(self) -> list[dict[str, Any]]: ...
    def template_options(self) -> dict[str, Any]: ...


class ChatForm:
    """Chat answers. The role comes with the first content, so that no chunk precedes a token."""

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prompt_in_choice = False

    def __init__(self, logprobs: LogprobsOfPart) -> None:
        self._logprobs = logprobs

    def whole(self, state: ChoiceState, shared: dict[str, Any]) -> ChatChoice:
        """A finished choice."""
        message = Message(role="assistant", content="".join(state.text))
        return ChatChoice(**shared, logprobs=self._logprobs(state), message=message)

    def piece(
        self, state: ChoiceState, output: RequestOutput, first: bool, shared: dict[str, Any]
    ) -> ChatChunkChoice:
        """One output of a choice."""
        text = output.text
        delta = Message(role="assistant", content=text) if first else Message(content=text)
        return ChatChunkChoice(**shared, logprobs=self._logprobs(output), delta=delta)


def chat_router(service: Service) -> APIRouter:
    """The endpoint over `service`."""
    router = APIRouter()

    @router.post("/v1/chat/completions")
    async def create_chat_completion(
        body: ChatCompletionRequest, request: fastapi.Request
    ) -> Response:
        service.check_model(body.model)
        service.engine.check_room(body.num_choices)
        prompt = prompt_ids(service, body)
        outputs = _outputs(service, body, prompt)
        logprobs = partial(_logprobs, service.tokenizer, body.num_logprobs)
        calls = ToolCallForm(logprobs, named=body.names_tool)
        form = calls if body.callable else ChatForm(logprobs)
        return await answer(service, request, body, form, [prompt], None, outputs)

    return router


def _logprobs(
    tokenizer: TokenizerLike, count: int | None, part: ChoiceState | RequestOutput
) -> ChatLogprobs | None:
    """The log-probabilities of a choice, or of one part of it, if they were asked for."""
    if count is None:
        return None
    return chat_logprobs(tokenizer, part.token_ids, part.logprobs, count)


def _outputs(
    service: Service, body: ChatCompletionRequest, prompt: list[int]
) -> StructuredOutputs | None:
    """The form of the answer; where the prompt ends inside the reasoning, it begins behind it."""
    if body.calls_form is not None:
        if body.form is not None:
            message = "an answer that must call a tool can't have another form"
            raise invalid_request(message, param="tool_choice")
        if len(service.tokenizer.encode(SECTION_MARK, add_special=True)) > 1:
            message = "this checkpoint's tokenizer has no marks of tool calls"
            raise invalid_request(message, param="tools", code="unsupported_option")
    return behind_reasoning(body.calls_form or body.form, prompt, service.tokenizer)


def prompt_ids(service: Service, body: TemplateInput) -> list[int]:
    """The prompt that the template makes of a body; raises 400 where it can't."""
    try:
        return service.tokenizer.encode_chat(body.template_messages(), **body.template_options())
    # A TypeError comes from template options that are no options, such as `messages`.
    except (ValueError, TypeError) as error:
        raise invalid_request(str(error), param="messages") from error
