"""Converts tool call ids to Kimi's: `functions.NAME:INDEX`.

Kimi's chat template shows a call and its result by the id alone, so that another id hides the name
of the function. INDEX counts the calls of a conversation from 0.
"""

import re
from collections import deque
from itertools import chain, groupby
from typing import Any

ID = "tool_call_id"
KNOWN = re.compile(r"functions\.(.+):(0|[1-9][0-9]{0,5})", re.DOTALL)


def with_known_ids(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages with the ids that Kimi would have given, in calls and results.

    An id stays if it has Kimi's form, names the called function, and its INDEX is above those
    before it. Every other call gets the next INDEX. An id thus depends on nothing after it, and the
    prompt of a growing conversation stays a prefix of the next one. Results without an id belong,
    in order, to the calls of the last turn that have no result.

    Raises ValueError if there are more or fewer results without an id than such calls.
    """
    ids = _Ids()
    runs = groupby(messages, key=lambda message: message["role"] == "tool")
    converted = (
        ids.results([*run]) if are_results else map(ids.turn, run) for are_results, run in runs
    )
    return list(chain.from_iterable(converted))


class _Ids:
    """The ids of a conversation so far."""

    def __init__(self) -> None:
        self._next = 0
        self._waiting: dict[str, deque[str]] = {}
        """Maps the client's id to Kimi's ids of the last turn with calls of that id, in order. The
        last one is never removed, so that a second result finds it too."""
        self._unanswered: list[str] = []
        """Kimi's ids of the last turn with calls that have no result yet."""

    def turn(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return a message other than a result, with Kimi's ids in its calls."""
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            waiting: dict[str, deque[str]] = {}
            converted = [self._call(call, waiting) for call in calls]
            self._waiting |= waiting
            self._unanswered = list(chain.from_iterable(waiting.values()))
            return {**message, "tool_calls": converted}
        return message

    def results(self, run: list[dict[str, Any]]) -> list[dict[str, Any]]:
        converted = [self._result(message) if message.get(ID) else message for message in run]
        unnamed = sum(not message.get(ID) for message in run)
        if unnamed and unnamed != len(self._unanswered):
            raise ValueError(
                f"messages of the role tool need a {ID}: {unnamed} have none, and "
                f"{len(self._unanswered)} calls before them have no result"
            )
        return [m if m.get(ID) else {**m, ID: self._unanswered.pop(0)} for m in converted]

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
        sent = str(message[ID])
        if waiting := self._waiting.get(sent):
            known = waiting.popleft() if len(waiting) > 1 else waiting[0]
            if known in self._unanswered:
                self._unanswered.remove(known)
            return {**message, ID: known}
        if orphan := KNOWN.fullmatch(sent):
            # The call is no longer in the history; no other call may get its id.
            self._next = max(self._next, int(orphan[2]) + 1)
        return message
