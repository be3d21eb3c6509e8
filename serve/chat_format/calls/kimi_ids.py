"""The ids of tool calls as Kimi knows them: `functions.NAME:INDEX`.

Kimi's chat template shows a call and its result by the id alone, so an id of another form hides
which function was called. INDEX counts the calls of a conversation from 0.
"""

import re
from collections import deque
from typing import Any

KNOWN = re.compile(r"functions\.(.+):(0|[1-9][0-9]{0,5})", re.DOTALL)


def with_known_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the ids that Kimi would have given, in calls and results alike.

    An id stays if it has Kimi's form, names the function that was called, and its INDEX is above
    those before it. Every other call gets the next INDEX. So an id depends on nothing behind it,
    and the prompt of a conversation that grows stays a prefix of the next one.
    """
    ids = _Ids()
    return [ids.known(message) for message in messages]


class _Ids:
    """The ids of a conversation so far."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[str, deque[str]] = {}
        """By the id that the client sent: the known ids of the last turn with calls of that id,
        in order. The last one is never removed, so that a second result finds it too."""

    def known(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the message with known ids."""
        if message["role"] == "tool":
            return self._result(message)
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            waiting: dict[str, deque[str]] = {}
            told = [self._call(call, waiting) for call in calls]
            self._waiting |= waiting
            return {**message, "tool_calls": told}
        return message

    def _call(self, call: Any, waiting: dict[str, deque[str]]) -> Any:
        match call:
            case {"function": {"name": str(name)}}:
                sent = str(call.get("id"))
            case _:
                return call
        kept = KNOWN.fullmatch(sent)
        if kept and kept[1] == name and int(kept[2]) >= self._next:
            self._next = int(kept[2])
        known = f"functions.{name}:{self._next}"
        self._next += 1
        waiting.setdefault(sent, deque()).append(known)
        return {**call, "id": known}

    def _result(self, message: dict[str, Any]) -> dict[str, Any]:
        sent = str(message.get("tool_call_id"))
        if waiting := self._waiting.get(sent):
            known = waiting.popleft() if len(waiting) > 1 else waiting[0]
            return {**message, "tool_call_id": known}
        if orphan := KNOWN.fullmatch(sent):
            # The call is no longer in the history; no other call may get its id.
            self._next = max(self._next, int(orphan[2]) + 1)
        return message
