"""Translates a Responses request to a chat."""

from collections.abc import Iterable, Sequence
from typing import Any

from serve.openai.protocol import ChatCompletionRequest, GenerationRequest
from serve.responses.items import (
    CallItem,
    CallOutputItem,
    Item,
    MessageItem,
    ReasoningItem,
    TextOrParts,
)
from serve.responses.protocol import ResponseRequest
from serve.responses.tools import chat_tools, full_name

PASSED = (*GenerationRequest.model_fields.keys() - {"stream", "stream_options"}, "top_logprobs")
PASSED += ("parallel_tool_calls", "chat_template_kwargs", "thinking", "thinking_token_budget")
"""Fields that chats have under the same name."""
REASONS, SPEAKS, CALLS = range(3)


def as_chat(body: ResponseRequest, messages: list[dict[str, Any]]) -> ChatCompletionRequest:
    """Return the chat of these messages. Raises ValidationError for what chats do not accept."""
    fields: dict[str, Any] = {name: getattr(body, name) for name in PASSED}
    fields |= {
        "messages": messages,
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": body.includes_logprobs or None,
        "response_format": body.text and body.text.response_format(),
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        **chat_tools(body.tools or [], body.tool_choice),
    }
    given = {name: value for name, value in fields.items() if value is not None}
    return ChatCompletionRequest.model_validate(given)


def chat_messages(instructions: str | None, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return the messages of a conversation.

    Instructions and leading system messages are one message: some templates read only the first.
    Reasoning, text and calls in this order are one assistant message. Other parts of its turn are
    merged by `template_messages`, as in chats.
    """
    texts = [instructions] if instructions else []
    begin = next((i for i, item in enumerate(items) if not _is_system(item)), len(items))
    texts += [f"{item.content}" for item in items[:begin] if isinstance(item, MessageItem)]
    system = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    return [*system, *_messages(items[begin:])]


def _is_system(item: Item) -> bool:
    return isinstance(item, MessageItem) and item.role in ("system", "developer")


def _messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    last: int | None = None
    for item in items:
        if isinstance(item, ReasoningItem) and not item.content:
            continue
        place, message = _alone(item)
        if place is None:
            messages.append(message)
        else:
            if last is None or place < last or place == last == SPEAKS:
                messages.append({"role": "assistant", "content": ""})
            turn = messages[-1]
            for name, value in message.items():
                if name in turn:
                    turn[name] += value
                else:
                    turn[name] = value
        last = place
    return messages


def _alone(item: Item) -> tuple[int | None, dict[str, Any]]:
    """Return None and an item's own message, or its rank and fields in an assistant's message."""
    match item:
        case ReasoningItem():
            return REASONS, {"reasoning_content": item.content}
        case MessageItem(role="assistant"):
            return SPEAKS, {"content": item.content}
        case CallItem():
            name = full_name(item.name, item.namespace)
            function = {"name": name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            return CALLS, {"tool_calls": [call]}
        case CallOutputItem():
            named = {"name": full_name(item.name, item.namespace)} if item.name else {}
            output = {"content": _content(item.output), **named}
            return None, {"role": "tool", "tool_call_id": item.call_id, **output}
        case MessageItem(role="user"):
            return None, {"role": "user", "content": _content(item.content)}
        case MessageItem():
            return None, {"role": "system", "content": item.content}


def _content(content: TextOrParts) -> Any:
    return content if isinstance(content, str) else [part.as_chat() for part in content]
