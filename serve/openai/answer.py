"""Runs engine requests and writes their HTTP answer, whole or streamed."""

import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

import fastapi
from fastapi import Response

from convert.text.json_pieces import JsonList, JsonNumbers, JsonText, dumps, json_pieces
from eagle3_jax.engine import Request
from serve.asgi.auth import client_of
from serve.asgi.sse import (
    DONE,
    ClientGone,
    EventStream,
    WholeBody,
    event,
    synthetic_field,
    until_disconnect,
)
from serve.chat_format.marked_text import TextOfTokens
from serve.engine.choices import Choices, ChoiceState, Part, TokenCounts, ends_with_stop_id
from serve.engine.stream import OutputStream
from serve.openai.kv_transfer import with_transfer
from serve.openai.logprob_forms import logprobs_by_id
from serve.openai.protocol import GenerationRequest
from serve.openai.service import Service
from serve.openai.spec_metrics import spec_metrics

CLIENT_CLOSED_REQUEST = 499


class BodyFormat(Protocol):
    """Formats the bodies of one endpoint."""

    id_prefix: str
    whole_object: str
    chunk_object: str
    prompt_in_choice: bool

    def choice(
        self, state: ChoiceState, part: Part, first: bool, shared: dict[str, Any]
    ) -> dict[str, Any]:
        """Return one choice, or a streamed part of it, for `json_pieces`."""
        ...


class AnswerInFlight(Protocol):
    """An answer that reads its engine outputs and returns the texts of its body.

    `whole` reads all outputs before it returns; `events` yields each event as its output arrives.
    """

    @property
    def choices(self) -> Choices: ...
    async def whole(self, stream: OutputStream) -> Iterable[str]: ...
    def events(self, stream: OutputStream) -> AsyncIterator[Iterable[str]]: ...


@dataclass(frozen=True)
class Answer:
    """The answer of one HTTP request in flight. Fields of the prompt come with its first part.

    `seed`, `spec`, `stop_reason`, `metrics`, `token_ids`, `token_origins`, `prompt_token_ids` and
    `prompt_logprobs` are extensions. The last five appear only on request.
    """

    service: Service
    body: GenerationRequest
    choices: Choices
    form: BodyFormat
    envelope: dict[str, Any]
    _texts: dict[int, TextOfTokens] = field(default_factory=dict)

    async def whole(self, stream: OutputStream) -> Iterable[str]:
        await self.choices.collect(stream)
        choices = JsonList(self._choice(state, state, True) for state in self.choices.states)
        ended = self._totals() | self._transfer_fields()
        return json_pieces(self._body(self.form.whole_object, choices, True, **ended))

    async def events(self, stream: OutputStream) -> AsyncIterator[Iterable[str]]:
        """Yield the answer's events: parts as they arrive, the usage if requested, then the end."""
        begun: set[int] = set()
        async for state, output in self.choices.follow(stream):
            first = state.index not in begun
            begun.add(state.index)
            piece = [self._choice(state, output, first)]
            more = {"usage": usage(self.choices.counts)} if self.body.continuous_usage else {}
            if output.finish_reason is not None:
                more |= self._transfer_fields()
            yield event(self._body(self.form.chunk_object, piece, first, **more))
        if self.body.include_usage:
            yield event(self._body(self.form.chunk_object, [], False, **self._totals()))
        yield DONE

    def _totals(self) -> dict[str, Any]:
        """Return the fields of the whole answer: its usage, and its metrics if requested."""
        metrics = spec_metrics(self.service, self.choices)
        return {"usage": usage(self.choices.counts), **metrics}

    def _body(
        self, kind: str, choices: list[Any] | JsonList, first: bool, **more: Any
    ) -> dict[str, Any]:
        fields = {**self.envelope, "object": kind, "choices": choices, **more}
        if first and not self.form.prompt_in_choice:
            fields |= self._prompt_fields(self.choices.states[0])
        return fields | {"seed": self.choices.seed}

    def _transfer_fields(self) -> dict[str, Any]:
        """Return the location of the prompt's pages, if they are retained for another server."""
        transfers, request = self.service.transfers, self.choices.states[0].request
        params = transfers and transfers.answered(request)
        return {} if params is None else {"kv_transfer_params": params}

    def _choice(self, state: ChoiceState, part: Part, first: bool) -> dict[str, Any]:
        """Return one choice, or a part of it, with the fields that both endpoints have."""
        fields: dict[str, Any] = {"index": state.index, "finish_reason": part.finish_reason}
        if part.finish_reason is not None:
            spec = _speculation(state)
            fields |= {"stop_reason": part.stop_reason, "seed": state.seed, "spec": spec}
        if self.body.return_token_ids:
            fields["token_ids"] = JsonNumbers(part.token_ids)
        if self.body.token_origins:
            fields["token_origins"] = JsonList(self._token_origins(state, part))
        if first and self.form.prompt_in_choice:
            fields |= self._prompt_fields(state)
        return self.form.choice(state, part, first, fields)

    def _token_origins(self, state: ChoiceState, part: Part) -> Iterator[JsonText]:
        """Yield the text that each token adds to the answer, and its origin.

        The origin is 0 for a token chosen by the target, i for one accepted as draft i of its
        round, and -i if that draft was looked up. A stop id adds no text.
        """
        fresh = TextOfTokens(self.service.tokenizer, skip_special=self.body.skips_special)
        texts = self._texts.setdefault(state.index, fresh)
        silent = ends_with_stop_id(part) and not self.body.include_stop_str_in_output
        final = len(part.token_ids) - 1
        for index, (token_id, origin) in enumerate(zip(part.token_ids, part.origins, strict=True)):
            last = index == final
            ended = last and part.finish_reason is not None
            text = texts.add(None if last and silent else token_id, last=ended)
            yield JsonText(f'{{"text":{dumps(text)},"origin":{origin}}}')

    def _prompt_fields(self, state: ChoiceState) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if self.body.return_token_ids:
            fields["prompt_token_ids"] = JsonNumbers(state.request.prompt_ids)
        if (count := self.body.prompt_logprobs) is not None:
            entries = logprobs_by_id(self.service.token_texts, state.prompt_logprobs, count)
            fields["prompt_logprobs"] = JsonList(entries)
        return fields


async def answer(
    service: Service,
    request: fastapi.Request,
    body: GenerationRequest,
    form: BodyFormat,
    requests: Sequence[Request],
    num_prompts: int,
) -> Response:
    """Run the requests, the same number for each prompt, and return the response."""
    requests = await service.compile_grammars(requests)
    requests = with_transfer(body.kv_transfer_params, service.transfers, requests)
    envelope = {
        "id": f"{form.id_prefix}-{requests[0].request_id.rpartition('-')[0]}",
        "created": int(time.time()),
        "model": body.model or service.model.names[0],
        **synthetic_field(service.engine.stats),
    }
    choices = Choices(requests, num_prompts, prompt_only=body.prompt_only)
    in_flight = Answer(service, body, choices, form, envelope)
    return await respond(service, request, in_flight, streamed=bool(body.stream))


async def respond(
    service: Service, request: fastapi.Request, in_flight: AnswerInFlight, *, streamed: bool
) -> Response:
    """Run the requests of an answer and send it. They are cancelled if the client disconnects."""
    requests = [state.request for state in in_flight.choices.states]
    with ExitStack() as ends:
        ends.callback(service.end_transfers, requests)
        stream = await service.engine.submit(requests, client_of(request).name)
        ends.callback(service.engine.cancel, stream)
        request.state.record.generated = in_flight.choices
        if streamed:
            return EventStream(in_flight.events(stream), ends.pop_all().close)
        try:
            texts = await until_disconnect(request.receive, in_flight.whole(stream))
        except ClientGone:
            return Response(status_code=CLIENT_CLOSED_REQUEST)
        return WholeBody(texts)


def usage(counts: TokenCounts) -> dict[str, Any]:
    """Return the token counts of one HTTP request: each prompt once, and all choices.

    cached_tokens_details (SGLang's name) locates the cached tokens, if not all were on the devices.
    """
    return {
        "prompt_tokens": counts.prompt,
        "completion_tokens": counts.completion,
        "total_tokens": counts.prompt + counts.completion,
        "prompt_tokens_details": {"cached_tokens": counts.cached, **counts.cached_details},
    }


def _speculation(state: ChoiceState) -> dict[str, Any]:
    """Return the speculation counts of one choice. Rounds are counted before trimming."""
    counts = state.acceptance
    return {
        "rounds": len(state.rounds),
        "accepted": counts.num_accepted_tokens,
        "accepted_lookup": counts.num_accepted_lookup_tokens,
        "accept_length": counts.accept_length,
    }
