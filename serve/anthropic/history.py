"""Converts the turns of a conversation to chat messages."""

from collections.abc import Iterator, Sequence
from itertools import chain, groupby
from typing import Any

from serve.anthropic.blocks import (
    AssistantTurn,
    ImageBlock,
    SystemTurn,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
    UserTurn,
)
from serve.anthropic.thinking import reasoning_of
from serve.chat_format.call_arguments import written_arguments

BILLING = "x-anthropic-billing-header:"
"""Start of a block in Claude Code's system prompt, for Anthropic's accounting. It differs between
requests, so that no two prompts would share a prefix. The block is dropped."""


def chat_messages(
    system: Sequence[TextBlock], turns: Sequence[SystemTurn | UserTurn | AssistantTurn]
) -> list[dict[str, Any]]:
    """Return the messages in OpenAI's format. The texts of blocks are concatenated.

    Consecutive turns of the user, or of the assistant, are merged, as the protocol specifies.
    """
    kept = [block for block in system if not block.text.startswith(BILLING)]
    messages = [{"role": "system", "content": _joined(kept)}] if kept else []
    for kind, run in groupby(turns, key=type):
        blocks: list[Any] = [turn.content for turn in run]
        if kind is SystemTurn:
            messages += [{"role": "system", "content": _joined(each)} for each in blocks]
        elif kind is UserTurn:
            messages += _user_messages(list(chain.from_iterable(blocks)))
        else:
            messages.append(_assistant_message(list(chain.from_iterable(blocks))))
    return messages


def _user_messages(
    blocks: Sequence[TextBlock | ImageBlock | ToolResultBlock],
) -> Iterator[dict[str, Any]]:
    """Yield one message for each call result, then the user's own message."""
    results = [block for block in blocks if isinstance(block, ToolResultBlock)]
    for result in results:
        # Templates have no place for the error flag.
        flag = [TextBlock(type="text", text="Error: ")] if result.is_error else []
        content = _parts([*flag, *result.content])
        yield {"role": "tool", "tool_call_id": result.tool_use_id, "content": content}
    own = [block for block in blocks if not isinstance(block, ToolResultBlock)]
    if own or not results:
        yield {"role": "user", "content": _parts(own)}


def _assistant_message(
    blocks: Sequence[TextBlock | ThinkingBlock | ToolUseBlock],
) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant"}
    thoughts = [block for block in blocks if isinstance(block, ThinkingBlock)]
    texts = [block for block in blocks if isinstance(block, TextBlock)]
    calls = [block for block in blocks if isinstance(block, ToolUseBlock)]
    if thoughts:
        message["reasoning_content"] = "".join(map(reasoning_of, thoughts))
    if texts or not calls:
        message["content"] = _joined(texts)
    if calls:
        message["tool_calls"] = [_call(block) for block in calls]
    return message


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": written_arguments(block.input)}
    return {"id": block.id, "type": "function", "function": function}


def _parts(blocks: Sequence[TextBlock | ImageBlock]) -> list[dict[str, Any]]:
    return [
        {"type": "text", "text": block.text}
        if isinstance(block, TextBlock)
        else {"type": "image_url", "image_url": {"url": block.source.as_url}}
        for block in blocks
    ]


def _joined(blocks: Sequence[TextBlock]) -> str:
    return "".join(block.text for block in blocks)
