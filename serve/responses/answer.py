"""The answer to a Responses request: one body, or a stream of events."""

import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from convert.text.json_pieces import JsonText, json_pieces
from eagle3_jax.engine import RequestOutput
from serve.asgi.errors import as_api_error
from serve.asgi.sse import in_turns, named_event, synthetic_field
from serve.chat_format.parser import TokenPart, TokenParts
from serve.engine.choices import Choices, ends_with_stop_id
from serve.engine.errors import EngineError
from serve.engine.stream import OutputStream
from serve.openai.answer_items import Event
from serve.openai.chat import answer_parser
from serve.openai.logprob_forms import chat_logprobs
from serve.openai.service import Service
from serve.openai.spec_metrics import spec_metrics
from serve.responses.body import ended, failed, usage
from serve.responses.output import OutputItems
from serve.responses.planning import PlannedResponse
from serve.responses.protocol import ResponseRequest

Response = dict[str, Any]


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
        self.choices = Choices([planned.request], 1)
        self._service, self._body, self._keep = service, body, keep
        self._parser = answer_parser(service, planned.chat, planned.end_of_reasoning)
        self._parts = TokenParts(
            service.reading,
            inside_reasoning=planned.end_of_reasoning is not None,
            reads_calls=bool(planned.chat.offered),
        )
        self._output = OutputItems(run, seals=body.seals_reasoning, namespaces=body.namespaces)
        self._reasoning_tokens = 0
        self._synthetic = synthetic_field(service.engine.stats)
        sampling = planned.request.sampling
        self._fields: Response = {
            "id": f"resp_{run}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model or service.model.names[0],
            **planned.repeated,
            "seed": sampling.seed,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            **self._synthetic,
        }

    async def whole(self, stream: OutputStream) -> Iterable[str]:
        async for _ in self._grown(stream):
            pass
        return json_pieces((await self._ended())[1])

    async def events(self, stream: OutputStream) -> AsyncIterator[Iterable[str]]:
        """Yield the answer as numbered events. An error is the last event."""
        number = 0
        try:
            async for event in self._events(stream):
                yield self._written(number, event)
                number += 1
        except EngineError as error:
            response = self._response(failed(as_api_error(error)))
            yield self._written(number, {"type": "response.failed", "response": response})

    async def _events(self, stream: OutputStream) -> AsyncIterator[Event]:
        begun = self._response({"status": "in_progress"})
        yield {"type": "response.created", "response": begun}
        yield {"type": "response.in_progress", "response": begun}
        async for event in self._grown(stream):
            yield event
        status, response = await self._ended()
        yield {"type": f"response.{status}", "response": response}

    async def _grown(self, stream: OutputStream) -> AsyncIterator[Event]:
        """Parse the engine's outputs like those of a chat, and yield the events of the items."""
        async for _, output in self.choices.follow(stream):
            for event in self._read(output):
                yield event

    def _read(self, output: RequestOutput) -> Iterator[Event]:
        parts = self._parts.take(output.token_ids)
        self._reasoning_tokens += parts.count("reasoning")
        last = output.finish_reason is not None
        logprobs = self._logprobs(output, parts)
        for grown in self._parser.take_each(output.token_ids, output.text, final=last):
            yield from self._output.take(grown, logprobs)
            logprobs = []
        if last:
            yield from self._output.end(cut=output.finish_reason != "stop")

    def _logprobs(self, output: RequestOutput, parts: list[TokenPart]) -> list[JsonText]:
        """Return the requested log-probabilities of tokens that are message text."""
        if (count := self._body.num_logprobs) is None:
            return []
        silent = ends_with_stop_id(output) and not self._body.include_stop_str_in_output
        token_bytes, skips = self._service.tokenizer.token_bytes, self._body.skips_special
        tokens = list(zip(output.token_ids, output.logprobs, parts, strict=True))
        covered = [
            (token_id, entry)
            for token_id, entry, part in (tokens[:-1] if silent else tokens)
            if part == "content" and token_bytes(token_id, skips)
        ]
        ids, entries = [i for i, _ in covered], [entry for _, entry in covered]
        return list(chat_logprobs(self._service.token_texts, ids, entries, count))

    def _written(self, number: int, event: Event) -> Iterable[str]:
        named = {"type": event["type"], "sequence_number": number}
        return named_event({**named, **event, **self._synthetic})

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
            totals = spec_metrics(self._service, self.choices)
            totals |= {"usage": usage(self.choices.counts, self._reasoning_tokens)}
        open_end = {"error": None, "incomplete_details": None, "completed_at": None}
        output = list(self._output.items)
        return {**self._fields, **open_end, **end, "output": output, **totals}
