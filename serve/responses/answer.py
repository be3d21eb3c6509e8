"""The answer to a Responses request: one body, or a stream of events."""

import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from convert.text.json_pieces import JsonText, json_pieces
from eagle3_jax.engine import RequestOutput
from serve.asgi.errors import as_api_error
from serve.asgi.sse import in_turns, named_event, synthetic_field
from serve.engine.choices import Choices, ChoiceState
from serve.engine.errors import EngineError
from serve.engine.stream import OutputStream
from serve.openai.service import Service
from serve.openai.spec_metrics import measure
from serve.responses.body import ended, failed, sampled, usage
from serve.responses.output import Event
from serve.responses.planning import PlannedResponse
from serve.responses.protocol import ResponseRequest
from serve.responses.reading import Reading

Response = dict[str, Any]


class ReadChoices(Choices):
    """The single choice of a response, whose output items are parsed as it arrives."""

    def __init__(self, planned: PlannedResponse, reading: Reading) -> None:
        super().__init__([planned.request], 1)
        self.reading = reading
        self.added: list[Event] = []
        """The events of the last engine output."""

    async def follow(
        self, stream: OutputStream
    ) -> AsyncIterator[tuple[ChoiceState, RequestOutput]]:
        """Yield every engine output after parsing it."""
        async for state, output in super().follow(stream):
            self.added = list(self.reading.take(output))
            yield state, output


class ResponseAnswer:
    """One response. A stream ends with the same object as a whole answer.

    `keep` stores the response's id, JSON and output items when it ends, unless it failed. None:
    nothing is stored.
    """

    def __init__(
        self,
        service: Service,
        body: ResponseRequest,
        planned: PlannedResponse,
        keep: Callable[[str, str, list[Any]], None] | None,
    ) -> None:
        run = planned.request.request_id.rpartition("-")[0]
        self.choices = ReadChoices(planned, Reading(service, body, planned, run))
        self._service, self._keep = service, keep
        self._synthetic = synthetic_field(service.engine.stats)
        self._fields: Response = {
            "id": f"resp_{run}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model or service.model.names[0],
            **planned.asked,
            **sampled(planned.request.sampling),
            **self._synthetic,
        }

    async def whole(self) -> Iterable[str]:
        """Return the complete answer as one body."""
        return json_pieces((await self._ended())[1])

    async def events(self, stream: OutputStream) -> AsyncIterator[Iterable[str]]:
        """Yield the answer as numbered events. An error is the last event."""
        number = 0
        try:
            async for kind, fields in self._events(stream):
                yield self._written(kind, number, fields)
                number += 1
        except EngineError as error:
            response = self._response(failed(as_api_error(error)))
            yield self._written("response.failed", number, {"response": response})

    async def _events(self, stream: OutputStream) -> AsyncIterator[Event]:
        begun = self._response({"status": "in_progress"})
        yield "response.created", {"response": begun}
        yield "response.in_progress", {"response": begun}
        async for _ in self.choices.follow(stream):
            for event in self.choices.added:
                yield event
        status, response = await self._ended()
        yield f"response.{status}", {"response": response}

    def _written(self, kind: str, number: int, fields: dict[str, Any]) -> Iterable[str]:
        event = {"type": kind, "sequence_number": number, **fields, **self._synthetic}
        return named_event(kind, event)

    async def _ended(self) -> tuple[str, Response | JsonText]:
        """Return the final status and response, and store it."""
        response = self._response(ended(self.choices.finish_reasons[0]))
        status = response["status"]
        if self._keep is None or status == "failed":
            return status, response
        pieces = [piece async for piece in in_turns(json_pieces(response))]
        text = JsonText(b"".join(pieces).decode())
        self._keep(response["id"], text, response["output"])
        return status, text

    def _response(self, end: dict[str, Any]) -> Response:
        """Return the response so far; its usage, and requested metrics, once it has ended."""
        totals: dict[str, Any] = {"usage": None}
        if end["status"] != "in_progress":
            rounds = [state.rounds for state in self.choices.states]
            drafts = self._service.engine.stats.num_speculative_tokens
            metrics = measure(self._service.spec_metrics, drafts, rounds)
            totals = metrics | {
                "usage": usage(self.choices.counts, self.choices.reading.reasoning_tokens)
            }
        open_end = {"error": None, "incomplete_details": None, "completed_at": None}
        output = list(self.choices.reading.items)
        return {**self._fields, **open_end, **end, "output": output, **totals}
