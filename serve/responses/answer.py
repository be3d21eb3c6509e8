"""A response under way: as one body, or as events."""

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from eagle3_jax.engine import RequestOutput
from serve.asgi.errors import as_api_error
from serve.asgi.sse import named_event
from serve.asgi.synthetic_header import synthetic_field
from serve.chat_format.token_parts import TokenPart, TokenParts
from serve.engine.choices import Choices
from serve.engine.errors import EngineError
from serve.engine.stream import OutputStream
from serve.openai.answers.logprob_forms import chat_logprobs
from serve.openai.answers.spec_metrics import measure
from serve.openai.chat import answer_parser
from serve.openai.service import Service
from serve.responses.body import asked, ended, failed, usage
from serve.responses.output import Event, Output
from serve.responses.planning import PlannedResponse
from serve.responses.protocol import ResponseRequest

Response = dict[str, Any]


class ResponseAnswer:
    """One response. A whole one is what the events of a streamed one end with.

    keep: is given the response once it has ended, unless it failed.
    """

    def __init__(
        self,
        service: Service,
        body: ResponseRequest,
        planned: PlannedResponse,
        keep: Callable[[Response], None],
    ) -> None:
        (request,) = planned.requests
        run = request.request_id.rpartition("-")[0]
        self.choices = Choices(planned.requests, 1)
        self._service, self._body, self._keep = service, body, keep
        self._synthetic = synthetic_field(service.engine.stats)
        self._fields: Response = {
            "id": f"resp_{run}",
            "object": "response",
            "created_at": int(time.time()),
            "model": body.model or service.model.names[0],
            **asked(body, request),
            **self._synthetic,
        }
        inside, chat = planned.inside_reasoning, planned.chat
        self._parser = answer_parser(service, chat, inside)
        self._parts = TokenParts(
            service.reading, inside_reasoning=inside, reads_calls=bool(chat.offered)
        )
        self._reasoning_tokens = 0
        self._output = Output(run, seals=body.seals_reasoning)

    async def whole(self, stream: OutputStream) -> str:
        """The answer as one body, once all of it has come."""
        last: Event | None = None
        async for event in self._run(stream):
            last = event
        assert last is not None
        return json.dumps(last[1]["response"])

    async def events(self, stream: OutputStream) -> AsyncIterator[bytes]:
        """The answer as numbered events. An error is one that ends them."""
        number = 0
        try:
            async for kind, fields in self._run(stream):
                yield self._event(kind, number, fields)
                number += 1
        except EngineError as error:
            response = self._response(failed(as_api_error(error)))
            yield self._event("response.failed", number, {"response": response})

    def _event(self, kind: str, number: int, fields: dict[str, Any]) -> bytes:
        event = {"type": kind, "sequence_number": number, **fields, **self._synthetic}
        return named_event(kind, json.dumps(event))

    async def _run(self, stream: OutputStream) -> AsyncIterator[Event]:
        begun = self._response({"status": "in_progress"})
        yield "response.created", {"response": begun}
        yield "response.in_progress", {"response": begun}
        async for _, output in self.choices.follow(stream):
            for event in self._take(output):
                yield event
        end = ended(self.choices.finish_reasons[0])
        status = end["status"]
        for event in self._output.end("completed" if status == "completed" else "incomplete"):
            yield event
        response = self._response(end)
        if status != "failed":
            self._keep(response)
        yield f"response.{status}", {"response": response}

    def _take(self, output: RequestOutput) -> list[Event]:
        final = output.finish_reason is not None
        parts = self._parts.take(output.token_ids)
        self._reasoning_tokens += parts.count("reasoning")
        logprobs = self._logprobs(output, parts)
        grown = self._parser.take(output.token_ids, output.text, final=final)
        return list(self._output.take(grown, logprobs))

    def _logprobs(self, output: RequestOutput, parts: list[TokenPart]) -> list[Any]:
        """Of the tokens that are text of a message, if they were asked for."""
        if (count := self._body.num_logprobs) is None:
            return []
        tokenizer, skips = self._service.tokenizer, self._body.skips_special
        by_id = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
        silent = by_id and not self._body.include_stop_str_in_output
        tokens = list(zip(output.token_ids, output.logprobs, parts, strict=True))
        told = [
            (token_id, entry)
            for token_id, entry, part in (tokens[:-1] if silent else tokens)
            if part == "content" and tokenizer.token_bytes(token_id, skips)
        ]
        ids, entries = [i for i, _ in told], [entry for _, entry in told]
        found = chat_logprobs(tokenizer, ids, entries, count)
        return [entry.model_dump() for entry in found.content]

    def _response(self, end: dict[str, Any]) -> Response:
        """The response as it is; its usage, and metrics if asked for, once it has ended."""
        totals: dict[str, Any] = {"usage": None}
        if end["status"] != "in_progress":
            rounds = [state.rounds for state in self.choices.states]
            drafts = self._service.engine.stats.num_speculative_tokens
            metrics = measure(self._service.spec_metrics, drafts, rounds)
            totals = {name: value.model_dump() for name, value in metrics.items()}
            totals["usage"] = usage(self.choices.counts, self._reasoning_tokens)
        open_end = {"error": None, "incomplete_details": None}
        return {**self._fields, **open_end, **end, "output": list(self._output.items), **totals}
