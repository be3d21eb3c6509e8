"""The answer to a message: one body, or a stream of events."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from convert.text.json_pieces import json_pieces
from serve.anthropic.content import ContentBlocks
from serve.asgi.errors import anthropic_form, as_api_error
from serve.asgi.sse import named_event
from serve.chat_format.parser import AnswerParser
from serve.engine.choices import Choices, ChoiceState, ends_with_stop_id
from serve.engine.errors import EngineError, ShuttingDown
from serve.engine.stream import OutputStream
from serve.openai.answer_items import Event

PING: dict[str, Any] = {"type": "ping"}
PING_S = 10.0


async def with_pings(
    events: AsyncIterator[list[Event]], every_s: float = PING_S
) -> AsyncIterator[list[Event]]:
    """Yield the same lists of events, and a ping after every `every_s` seconds without one."""
    while True:
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while not (await asyncio.wait((coming,), timeout=every_s))[0]:
                yield [PING]
        finally:
            coming.cancel()
        if (some := coming.result()) is None:
            return
        yield some


@dataclass(frozen=True)
class MessageAnswer:
    """An answer with one choice. `limit`: its token limit. `synthetic`: fields of every event."""

    choices: Choices
    parser: AnswerParser
    content: ContentBlocks
    limit: int
    model: str
    request_id: str
    synthetic: dict[str, float]

    async def whole(self, stream: OutputStream) -> Iterable[str]:
        """Return the message as one body. Raises ShuttingDown if the server aborted the answer."""
        async for _ in self._events(stream):
            pass
        message = self._message(self.content.items, self._stop(), self._usage())
        return json_pieces(message | self.synthetic)

    async def events(self, stream: OutputStream) -> AsyncIterator[Iterable[str]]:
        """Yield the message as events. An error is the last event."""
        try:
            async for events in with_pings(self._events(stream)):
                for event in events:
                    yield self._written(event)
        except EngineError as error:
            failure = as_api_error(error)
            _, body = anthropic_form(
                failure.status, failure.message, failure.param, self.request_id
            )
            yield self._written(body)

    async def _events(self, stream: OutputStream) -> AsyncIterator[list[Event]]:
        """Yield each output's events. The first has the cached token count for message_start."""
        begun = False
        async for state, output in self.choices.follow(stream):
            last = state.finish_reason is not None
            events = [] if begun else [*self._start()]
            for parts in self.parser.take_each(output.token_ids, output.text, final=last):
                events += self.content.take(parts)
            if last:
                events += [*self.content.end(cut=not ends_with_stop_id(state)), *self._end()]
            yield events
            begun = True

    @property
    def _state(self) -> ChoiceState:
        return self.choices.states[0]

    def _start(self) -> Iterator[Event]:
        unended = {"stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": self._message([], unended, self._usage())}
        yield PING

    def _end(self) -> Iterator[Event]:
        yield {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        yield {"type": "message_stop"}

    def _message(
        self, content: list[dict[str, Any]], stop: dict[str, Any], usage: dict[str, Any]
    ) -> dict[str, Any]:
        run = self._state.request.request_id.rpartition("-")[0]
        head = {"id": f"msg_{run}", "type": "message", "role": "assistant", "model": self.model}
        return {**head, "content": content, **stop, "usage": usage}

    def _stop(self) -> dict[str, Any]:
        """Return the stop reason. Raises ShuttingDown if the server aborted the answer."""
        state = self._state
        matched = state.stop_reason if isinstance(state.stop_reason, str) else None
        match state.finish_reason:
            case "length" if len(state.token_ids) < self.limit:
                reason = "model_context_window_exceeded"
            case "length":
                reason = "max_tokens"
            case "stop" if matched is not None:
                reason = "stop_sequence"
            case "stop":
                reason = "tool_use" if self.parser.has_calls else "end_turn"
            case _:
                raise ShuttingDown
        return {"stop_reason": reason, "stop_sequence": matched}

    def _usage(self) -> dict[str, Any]:
        """Return the token counts so far. Prompt tokens are either cached or input tokens."""
        counts = self.choices.counts
        return {
            "input_tokens": counts.prompt - counts.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": counts.cached,
            "output_tokens": counts.completion,
            **counts.cached_details,
        }

    def _written(self, event: Event) -> Iterable[str]:
        return named_event(event | self.synthetic)
