"""One message under way, and how it is written: whole, or as the events of a stream."""

import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from serve.anthropic.content import ContentEvents, whole_content
from serve.anthropic.pings import PING, with_pings
from serve.anthropic.protocol import MessagesRequest
from serve.asgi.error_forms import anthropic_form
from serve.asgi.errors import as_api_error
from serve.chat_format.parser import AnswerParser
from serve.engine.choices import Choices, ChoiceState
from serve.engine.errors import EngineError, ShuttingDown
from serve.engine.stream import OutputStream


@dataclass(frozen=True)
class MessageAnswer:
    """An answer of one choice. synthetic: fields that every body and event has."""

    body: MessagesRequest
    choices: Choices
    parser: AnswerParser
    model: str
    request_id: str
    synthetic: dict[str, float]

    def whole(self) -> str:
        """The message as one body; raises ShuttingDown for an answer that was given up."""
        parts = self.parser.take(self._state.token_ids, self._state.text, final=True)
        content = whole_content(parts, shows_thinking=self.body.shows_thinking)
        return json.dumps(self._message(content, self._stop(), self._usage()) | self.synthetic)

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The message as events, the last of which says what went wrong if something did."""
        try:
            async for events in with_pings(self._events(stream)):
                for event in events:
                    yield self._written(event)
        except EngineError as error:
            told = as_api_error(error)
            _, body = anthropic_form(told.status, told.message, self.request_id)
            yield self._written(body)

    async def _events(self, stream: OutputStream) -> AsyncIterator[list[dict[str, Any]]]:
        """Those of each output."""
        content = ContentEvents(shows_thinking=self.body.shows_thinking)
        first = True
        async for _, output in self.choices.follow(stream):
            last = output.finish_reason is not None
            parts = self.parser.take(output.token_ids, output.text, final=last)
            events = [*(self._start() if first else ()), *content.take(parts)]
            if last:
                events += [*content.end(), *self._end()]
            first = False
            yield events

    @property
    def _state(self) -> ChoiceState:
        return self.choices.states[0]

    def _start(self) -> Iterator[dict[str, Any]]:
        """It comes with the first output, which brings what was cached."""
        unended = {"stop_reason": None, "stop_sequence": None}
        yield {"type": "message_start", "message": self._message([], unended, self._usage())}
        yield PING

    def _end(self) -> Iterator[dict[str, Any]]:
        yield {"type": "message_delta", "delta": self._stop(), "usage": self._usage()}
        yield {"type": "message_stop"}

    def _message(
        self, content: list[dict[str, Any]], stop: dict[str, Any], usage: dict[str, int]
    ) -> dict[str, Any]:
        run = self._state.request.request_id.rpartition("-")[0]
        said = {"id": f"msg_{run}", "type": "message", "role": "assistant", "model": self.model}
        return {**said, "content": content, **stop, "usage": usage}

    def _stop(self) -> dict[str, Any]:
        """Why the answer ended; ShuttingDown where the server gave it up."""
        state = self._state
        matched = state.stop_reason if isinstance(state.stop_reason, str) else None
        match state.finish_reason:
            case "length" if len(state.token_ids) < self.body.max_tokens:
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

    def _usage(self) -> dict[str, int]:
        """The tokens so far; those of the prompt are either cached or not."""
        counts = self.choices.counts
        return {
            "input_tokens": counts.prompt - counts.cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": counts.cached,
            "output_tokens": counts.completion,
        }

    def _written(self, event: dict[str, Any]) -> bytes:
        return f"event: {event['type']}\ndata: {json.dumps(event | self.synthetic)}\n\n".encode()
