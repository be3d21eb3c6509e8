"""Converts the messages of a chat request to the form that chat templates read."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from serve.asgi.json_body import refuse_too_much
from serve.chat_format.call_arguments import is_too_deep, read_arguments, text_of, unwrapped
from serve.chat_format.format import ChatFormat
from serve.chat_format.reasoning import REASONING


def template_messages(
    messages: Iterable[dict[str, Any]], calls: ChatFormat | None
) -> list[dict[str, Any]]:
    """Return the messages in the form that the chat template reads.

    Null fields are dropped, reasoning gets both of its names, assistant messages of one turn are
    merged, and calls get the arguments and ids of the format.

    Args:
        messages: those of the request, each with its `role`.
        calls: the format of the model's calls, or None if it is unknown.

    Raises:
        ApiError: 400 for arguments with more JSON values than a body may have.
    """
    merged = list(_turns(list(map(_plain, messages))))
    read = _as_sent
    if calls is None or calls.arguments_as_objects:
        refuse_too_much([unwrapped(text).encode(errors="replace") for text in _arguments(merged)])
        read = read_arguments
    merged = [_with_arguments(message, read) for message in merged]
    return merged if calls is None else calls.with_known_ids(merged)


def _plain(message: dict[str, Any]) -> dict[str, Any]:
    """Return the message without nulls, and with its reasoning under both names.

    Templates print a null as "None". One that reads `reasoning` first would not look for
    `reasoning_content` if the former is present and empty.
    """
    fields = {k: value for k, value in message.items() if value is not None or k == "content"}
    given = {name: fields[name] for name in REASONING if fields.get(name)}
    if not given:
        return fields
    return {**fields, **dict.fromkeys(REASONING, next(iter(given.values()))), **given}


@dataclass
class _AssistantTurn:
    """Messages of an assistant turn, its calls' results (the last at `end`), and later messages."""

    answers: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    others: list[dict[str, Any]] = field(default_factory=list)
    end: int = -1

    def goes_on(self, place: int) -> bool:
        """Return whether an assistant message at this index belongs to the turn."""
        user_spoke = any(message["role"] == "user" for message in self.others)
        waits = place < self.end and not user_spoke
        return waits or not (self.results or self.others)


def _turns(messages: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the messages with each assistant turn merged and followed by its results.

    The model calls at the end of a turn and then reads the results. Text beside its calls, or
    between a call and its result, is therefore part of the turn with the call. Other messages
    between a call and its result arrived while the call ran: the model reads them after the
    results. If one is the user's, the assistant's next message answers it.
    """
    call_of = _calls_of_results(messages)
    ends = {call: result for result, call in call_of.items()}
    turns, with_call = [_AssistantTurn()], dict[int, _AssistantTurn]()
    for place, message in enumerate(messages):
        match message["role"]:
            case "assistant":
                if not turns[-1].goes_on(place):
                    turns.append(_AssistantTurn())
                with_call[place] = turns[-1]
                turns[-1].answers.append(message)
                turns[-1].end = max(turns[-1].end, ends.get(place, -1))
            case "tool" if place in call_of:
                with_call[call_of[place]].results.append(message)
            case "tool" if turns[-1].answers and not message.get("tool_call_id"):
                turns[-1].results.append(message)
            case _:
                turns[-1].others.append(message)
    for turn in turns:
        yield from (*_joined(turn.answers), *turn.results, *turn.others)


def _calls_of_results(messages: Sequence[dict[str, Any]]) -> dict[int, int]:
    """Map the index of each result to that of the message with its call, in order of results."""
    found, waiting = dict[int, int](), dict[str, int]()
    for place, message in enumerate(messages):
        match message["role"]:
            case "assistant":
                calls = [call for call in _calls(message) if isinstance(call, dict)]
                waiting |= {str(call.get("id")): place for call in calls}
            case "tool":
                call = waiting.get(str(message.get("tool_call_id")))
                found |= {} if call is None else {place: call}
            case _:
                pass
    return found


def _joined(turn: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge messages with calls among them: texts are concatenated, and all calls are kept."""
    if len(turn) < 2 or not any(map(_calls, turn)):
        return turn
    joined = dict(chain.from_iterable(message.items() for message in turn))
    for name in ("content", *REASONING):
        if texts := [message[name] for message in turn if message.get(name)]:
            joined[name] = _joined_texts(texts)
    return [joined | {"tool_calls": list(chain.from_iterable(map(_calls, turn)))}]


def _joined_texts(texts: list[Any]) -> Any:
    """Join the texts; the result is a list of parts if one of them is."""
    if all(isinstance(text, str) for text in texts):
        return "".join(texts)
    parts = ([{"type": "text", "text": t}] if isinstance(t, str) else t for t in texts)
    return list(chain.from_iterable(parts))


def _calls(message: dict[str, Any]) -> list[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, list) else []


def _arguments(messages: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield the arguments that will be parsed as JSON."""
    for call in chain.from_iterable(map(_calls, messages)):
        match call:
            case {"function": {"arguments": str(arguments)}}:
                yield arguments


def _as_sent(arguments: Any) -> Any:
    """Return the arguments; {} for None, which templates print as null, and text if too deep."""
    if arguments is None:
        return {}
    return text_of(arguments) if is_too_deep(arguments) else arguments


def _with_arguments(message: dict[str, Any], read: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the message with `read` applied to the arguments of its calls."""
    calls = _calls(message)
    return {**message, "tool_calls": [_read(call, read) for call in calls]} if calls else message


def _read(call: Any, read: Callable[[Any], Any]) -> Any:
    match call:
        case {"function": dict(function)}:
            arguments = read(function.get("arguments"))
            return {**call, "function": {**function, "arguments": arguments}}
        case _:
            return call
