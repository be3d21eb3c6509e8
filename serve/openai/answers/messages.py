"""Turns the parts of an answer into OpenAI's messages, whole or streamed."""

from typing import Any

from serve.chat_format.parts import AnswerParts, CallPart
from serve.openai.answers.responses import AssistantMessage, FunctionCall, ToolCall


def whole_message(parts: AnswerParts) -> AssistantMessage:
    """A whole answer; content is null where there is only something else."""
    others = _all_but_content(parts)
    content = parts.content or (None if others else "")
    return AssistantMessage(role="assistant", content=content, **others)


def delta(parts: AnswerParts, first: bool) -> AssistantMessage:
    """A streamed piece; the role comes with the first."""
    fields = _all_but_content(parts)
    if parts.content or not fields:
        fields["content"] = parts.content
    return AssistantMessage(**({"role": "assistant"} if first else {}), **fields)


def _all_but_content(parts: AnswerParts) -> dict[str, Any]:
    """vLLM calls reasoning `reasoning`, SGLang `reasoning_content`."""
    fields: dict[str, Any] = {}
    if parts.reasoning:
        fields |= {"reasoning": parts.reasoning, "reasoning_content": parts.reasoning}
    if parts.calls:
        fields["tool_calls"] = [_tool_call(index, call) for index, call in parts.calls.items()]
    return fields


def _tool_call(index: int, call: CallPart) -> ToolCall:
    """Only the first piece of a call has id, type and name; fields not set are not sent."""
    if call.id is None:
        return ToolCall(index=index, function=FunctionCall(arguments=call.arguments))
    function = FunctionCall(name=call.name, arguments=call.arguments)
    return ToolCall(index=index, id=call.id, type="function", function=function)
