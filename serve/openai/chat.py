"""HTTP endpoint for chat completions: POST /v1/chat/completions."""

from collections.abc import Iterable
from functools import partial
from typing import Any

import fastapi
from fastapi import APIRouter, Response

from convert.text.json_pieces import JsonList
from convert.text.tokenizer import TooManyTokens
from eagle3_jax.engine import Request
from serve.asgi.auth import client_of
from serve.asgi.errors import invalid_request, shortened
from serve.asgi.json_body import JsonRoute, templating
from serve.chat_format.parser import AnswerParser
from serve.chat_format.parts import AnswerParts, CallPart
from serve.chat_format.reasoning import after_reasoning, end_of_open_reasoning
from serve.engine.choices import ChoiceState, Part
from serve.images.errors import BadImage, ImagesBusy
from serve.images.reader import Items, Prompt, place
from serve.openai.answer import answer
from serve.openai.answer_form import answer_form
from serve.openai.completions import too_long
from serve.openai.content import as_errors, sources_in
from serve.openai.history import template_messages
from serve.openai.logprob_forms import chat_logprobs
from serve.openai.protocol import ChatCompletionRequest, ChatMessage, TokenizeRequest
from serve.openai.service import Service
from serve.openai.thinking import thinking_budget
from serve.openai.thinking_variables import keep_header, template_variables


class ChatBodyFormat:
    """Formats chat answers. The role comes with the first content: no chunk precedes a token.

    Like OpenAI's, an answer with calls finishes with "tool_calls", but with "stop" if the request
    named the function. Log-probabilities cover every token, also those of reasoning and calls.
    """

    id_prefix = "chatcmpl"
    whole_object = "chat.completion"
    chunk_object = "chat.completion.chunk"
    prompt_in_choice = False

    def __init__(
        self, service: Service, body: ChatCompletionRequest, end_of_reasoning: int | None
    ) -> None:
        self._service = service
        self._body = body
        self._end_of_reasoning = end_of_reasoning
        self._parsers: dict[int, AnswerParser] = {}

    def choice(
        self, state: ChoiceState, part: Part, first: bool, shared: dict[str, Any]
    ) -> dict[str, Any]:
        if first:
            self._parsers[state.index] = answer_parser(
                self._service, self._body, self._end_of_reasoning
            )
        parser = self._parsers[state.index]
        parts = parser.take(part.token_ids, part.text, final=part.finish_reason is not None)
        fields = dict(self._ended(shared, parser.has_calls), logprobs=self._logprobs(part))
        if part is state:
            return fields | {"message": whole_message(parts)}
        return fields | {"delta": delta(parts, first)}

    def _ended(self, shared: dict[str, Any], has_calls: bool) -> dict[str, Any]:
        if shared["finish_reason"] != "stop" or self._body.names_tool or not has_calls:
            return shared
        return shared | {"finish_reason": "tool_calls"}

    def _logprobs(self, part: Part) -> dict[str, JsonList] | None:
        """Return the log-probabilities of a choice or a part of it, or None if not requested."""
        count = self._body.num_logprobs
        if count is None:
            return None
        texts, logprobs = self._service.token_texts, part.logprobs
        return {"content": JsonList(chat_logprobs(texts, part.token_ids, logprobs, count))}


def whole_message(parts: AnswerParts) -> dict[str, Any]:
    """Return a whole answer. Its content is null if it has only reasoning or calls."""
    content = parts.content or (None if parts.reasoning or parts.calls else "")
    return {"role": "assistant", **_reasoning(parts), "content": content, **_tool_calls(parts)}


def delta(parts: AnswerParts, first: bool) -> dict[str, Any]:
    """Return a streamed part. The first has the role."""
    role = {"role": "assistant"} if first else {}
    only_others = not parts.content and (parts.reasoning or parts.calls)
    content = {} if only_others else {"content": parts.content}
    return {**role, **_reasoning(parts), **content, **_tool_calls(parts)}


def _reasoning(parts: AnswerParts) -> dict[str, str]:
    """Return the reasoning under vLLM's name and SGLang's."""
    text = parts.reasoning
    return {"reasoning": text, "reasoning_content": text} if text else {}


def _tool_calls(parts: AnswerParts) -> dict[str, Any]:
    calls = [_tool_call(index, call) for index, call in parts.calls.items()]
    return {"tool_calls": calls} if calls else {}


def _tool_call(index: int, call: CallPart) -> dict[str, Any]:
    """Return one call. Only its first part has id, type and name."""
    if call.id is None:
        return {"index": index, "function": {"arguments": call.arguments}}
    function = {"name": call.name, "arguments": call.arguments}
    return {"index": index, "id": call.id, "type": "function", "function": function}


def chat_router(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/chat/completions")
    async def create_chat_completion(
        body: ChatCompletionRequest, request: fastapi.Request
    ) -> Response:
        requests, end_of_reasoning = await plan_chat(service, body, client=client_of(request).name)
        form = ChatBodyFormat(service, body, end_of_reasoning)
        response = await answer(service, request, body, form, requests, 1)
        response.headers.update(keep_header(service, body))
        return response

    return router


async def plan_chat(
    service: Service,
    body: ChatCompletionRequest,
    images: Items | None = None,
    *,
    client: str = "",
) -> tuple[tuple[Request, ...], int | None]:
    """Return the engine requests of a chat, and the token id that ends its open reasoning, or None.

    Reasoning is open if the prompt ends within it. `images` are those of the messages, if they are
    read already. `client` is the client's name. Raises ApiError or EngineError for the client.
    """
    service.check_model(body.model)
    service.engine.check_room(body.num_choices, client)
    _check_choice(service, body)
    if images is None:
        images = await read_images(service, body.messages, client)
    return await templating(partial(_plan, service, body, images))


async def read_images(service: Service, messages: Iterable[ChatMessage], client: str) -> Items:
    """Return the images of messages. Raises 400 for one not accepted, 429 if readers are busy."""
    try:
        sources = sources_in([message.content for message in messages])
        return await service.images.read(sources, client)
    except (BadImage, ImagesBusy) as error:
        raise as_errors(error) from error


def answer_parser(
    service: Service, body: ChatCompletionRequest, end_of_reasoning: int | None
) -> AnswerParser:
    """Return a parser for one choice of the answer to a planned chat."""
    offered = body.offered
    return AnswerParser(
        service.tokenizer,
        service.reading,
        inside_reasoning=end_of_reasoning is not None,
        schemas={tool.name: tool.parameters for tool in offered} if offered else None,
        one_call=body.parallel_tool_calls is False,
        includes_reasoning=body.includes_reasoning,
        skip_special=body.skips_special,
    )


def _plan(
    service: Service, body: ChatCompletionRequest, images: Items
) -> tuple[tuple[Request, ...], int | None]:
    prompt, reading = chat_prompt(service, body, images), service.reading
    reasoning, tokenizer = reading.reasoning, service.tokenizer
    end_of_reasoning = end_of_open_reasoning(
        prompt.ids, tokenizer, always=reasoning is not None and reasoning.always_reasons
    )
    form = answer_form(body, reading, strict_tools=service.strict_tools)
    most = body.thinking_tokens
    most = service.thinking_token_budget if most is None else most
    budget = thinking_budget(most, end_of_reasoning is not None, reading, tokenizer)
    outputs = after_reasoning(form, end_of_reasoning)
    return service.plan(body, [prompt], None, outputs, budget), end_of_reasoning


def _check_choice(service: Service, body: ChatCompletionRequest) -> None:
    """Raise 400 if the model may choose to call a tool, but no parser would read the call."""
    if body.offered and not body.must_call and not service.reading.auto_tool_choice:
        message = (
            'tools: "auto" tool choice requires --enable-auto-tool-choice and a '
            "--tool-call-parser that reads this checkpoint's calls; here tool_choice can be "
            '"none", "required" or a function\'s name'
        )
        raise invalid_request(message, param="tool_choice", code="unsupported_option")


def chat_prompt(
    service: Service,
    body: ChatCompletionRequest | TokenizeRequest,
    images: Items,
    contexts: int = 1,
) -> Prompt:
    """Render the prompt of a body. Raises 400 if that fails or it exceeds `contexts` contexts."""
    messages = body.messages or ()
    most = contexts * service.model.max_model_len
    try:
        plain = [message.for_template() for message in messages]
        history = template_messages(plain, service.reading.history)
        variables = body.template_options() | template_variables(service, body)
        options = {**service.template_kwargs, **variables}
        ids = service.tokenizer.encode_chat(service.roles.shown(history), most, **options)
        seen = [images[source] for source in sources_in([m.content for m in messages])]
        prompt = place(ids, seen, service.images.placeholder) if seen else Prompt(ids)
        if len(prompt.ids) > most:
            raise TooManyTokens(most)
        return prompt
    except TooManyTokens as error:
        raise too_long(service, error) from error
    # A TypeError comes from invalid template options, such as `messages`.
    except (ValueError, TypeError, RecursionError) as error:
        raise invalid_request(shortened(str(error)), param="messages") from error
