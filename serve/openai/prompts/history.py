"""Turns the messages of a chat request into what its template reads."""

import json
from collections.abc import Iterator
from typing import Any

from serve.asgi.json_body import refuse_too_much

REASONING = ("reasoning_content", "reasoning")


def template_messages(
    messages: list[dict[str, Any]], arguments_as_objects: bool
) -> list[dict[str, Any]]:
    """The messages, as `template_message` has each; 400 for arguments that are too much JSON."""
    if arguments_as_objects:
        refuse_too_much([text.encode(errors="replace") for text in _arguments(messages)])
    return [template_message(message, arguments_as_objects) for message in messages]


def template_message(message: dict[str, Any], arguments_as_objects: bool) -> dict[str, Any]:
    """A message with its reasoning under either name, and the arguments of its calls as asked for.

    Raises ValueError for arguments that should be read and are no JSON object.
    """
    given = {name: message[name] for name in REASONING if message.get(name) is not None}
    if given:
        message = {**dict.fromkeys(REASONING, next(iter(given.values()))), **message, **given}
    calls = message.get("tool_calls")
    if not arguments_as_objects or not isinstance(calls, list):
        return message
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _arguments(messages: list[dict[str, Any]]) -> Iterator[str]:
    """What will be read as JSON."""
    for message in messages:
        calls = message.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            match call:
                case {"function": {"arguments": str(arguments)}}:
                    yield arguments


def _with_object(call: Any) -> Any:
    match call:
        case {"function": {"arguments": str(arguments)} as function}:
            pass
        case _:
            return call
    try:
        read = json.loads(arguments or "{}")
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the arguments of a tool call are not JSON: {error}") from error
    if not isinstance(read, dict):
        raise ValueError("the arguments of a tool call must be a JSON object")
    return {**call, "function": {**function, "arguments": read}}
