"""Parts of response bodies in OpenAI's format. Unset fields are omitted."""

from typing import Any, Literal

from pydantic import BaseModel

from serve.chat_format.parts import AnswerParts, CallPart
from serve.engine.choices import TokenCounts


def usage(counts: TokenCounts) -> dict[str, Any]:
    """Return the token counts of one HTTP request: each prompt once, and all choices.

    cached_tokens_details (SGLang's name) locates the cached tokens, if not all were on the devices.
    """
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached, **counts.cached_details},
    }


class FunctionCall(BaseModel):
    """The name of a called function, and its arguments as JSON text."""

    name: str | None = None
    arguments: str


class ToolCall(BaseModel):
    """One tool call, or a streamed part of it. Only the first part has id, type and name."""

    index: int
    id: str | None = None
    type: Literal["function"] | None = None
    function: FunctionCall


class AssistantMessage(BaseModel):
    """A chat answer, or a streamed part of it. The role comes with the first."""

    role: Literal["assistant"] | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    content: str | None = None
    tool_calls: list[ToolCall] | None = None


def whole_message(parts: AnswerParts) -> AssistantMessage:
    """Return a whole answer. Its content is null if it has only reasoning or calls."""
    others = _all_but_content(parts)
    content = parts.content or (None if others else "")
    return AssistantMessage(role="assistant", content=content, **others)


def delta(parts: AnswerParts, first: bool) -> AssistantMessage:
    """Return a streamed part. The first has the role."""
    fields = _all_but_content(parts)
    if parts.content or not fields:
        fields["content"] = parts.content
    return AssistantMessage(**({"role": "assistant"} if first else {}), **fields)


def _all_but_content(parts: AnswerParts) -> dict[str, Any]:
    """Return reasoning and calls. vLLM names reasoning `reasoning`, SGLang `reasoning_content`."""
    fields: dict[str, Any] = {}
    if parts.reasoning:
        fields |= {"reasoning": parts.reasoning, "reasoning_content": parts.reasoning}
    if parts.calls:
        fields["tool_calls"] = [_tool_call(index, call) for index, call in parts.calls.items()]
    return fields


def _tool_call(index: int, call: CallPart) -> ToolCall:
    """Return one call. Only its first part has id, type and name; unset fields are omitted."""
    if call.id is None:
        return ToolCall(index=index, function=FunctionCall(arguments=call.arguments))
    function = FunctionCall(name=call.name, arguments=call.arguments)
    return ToolCall(index=index, id=call.id, type="function", function=function)


class ModelCard(BaseModel):
    """One entry of GET /v1/models."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "eagle3-jax"
    root: str
    max_model_len: int
    input_modalities: list[Literal["text", "image"]]


class ModelList(BaseModel):
    """The answer of GET /v1/models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]
