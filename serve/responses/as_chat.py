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
        place = _place(item)
        if place is None:
            messages.append(_of_others(item))
        else:
            if last is None or place < last or place == last == SPEAKS:
                messages.append({"role": "assistant", "content": ""})
            _add(messages[-1], item)
        last = place
    return messages


def _place(item: Item) -> int | None:
    """Return the rank of an item in an assistant's message; None for other items."""
    match item:
        case ReasoningItem():
            return REASONS
        case MessageItem(role="assistant"):
            return SPEAKS
        case CallItem():
            return CALLS
        case _:
            return None


def _of_others(item: Item) -> dict[str, Any]:
    match item:
        case CallOutputItem():
            named = {"name": full_name(item.name, item.namespace)} if item.name else {}
            return {
                "role": "tool",
                "tool_call_id": item.call_id,
                "content": _content(item.output),
                **named,
            }
        case MessageItem(role="user"):
            return {"role": "user", "content": _content(item.content)}
        case MessageItem():
            return {"role": "system", "content": item.content}
        case _:
            raise TypeError(item)


def _content(content: TextOrParts) -> Any:
    return content if isinstance(content, str) else [part.as_chat() for part in content]


def _add(message: dict[str, Any], item: Item) -> None:
    match item:
        case ReasoningItem(content=str(text)):
            message["reasoning_content"] = message.get("reasoning_content", "") + text
        case MessageItem():
            message["content"] = item.content
        case CallItem():
            name = full_name(item.name, item.namespace)
            function = {"name": name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        case _:
            pass
