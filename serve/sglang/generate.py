"""HTTP endpoint for SGLang's POST /generate. Every stream event holds the whole answer so far."""

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import fastapi
from fastapi import APIRouter, Response

from convert.text.json_pieces import NULL, JsonList, JsonNumbers, JsonText, json_pieces
from eagle3_jax.engine import Request
from eagle3_jax.engine.logprob_rows import LogprobsOfToken
from eagle3_jax.engine.page_tiers import TokensByTier
from serve.asgi.auth import client_of
from serve.asgi.json_body import JsonRoute, tokenising
from serve.asgi.sse import DONE, event, synthetic_field
from serve.engine.choices import Choices, ChoiceState
from serve.engine.stream import OutputStream
from serve.images.reader import Prompt
from serve.openai.answer import respond
from serve.openai.completions import prompt_ids
from serve.openai.expansion import Expansion
from serve.openai.logprob_forms import TokenTexts, finite
from serve.openai.service import Service
from serve.sglang.abort import known_as
from serve.sglang.protocol import GenerateRequest, PromptOptions

DEFAULT_MAX_TOKENS = 128


def generate_router(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.put("/generate", include_in_schema=False)
    @router.post("/generate")
    async def generate(body: GenerateRequest, request: fastapi.Request) -> Response:
        count = sum(one.sampling.num_choices for one in body.prompt_options)
        service.engine.check_room(count, client_of(request).name)
        planned = await tokenising(request, partial(_plan, service, body.prompt_options))
        requests = await service.compile_grammars([one for _, one in planned])
        prompt_options = [one for one, _ in planned]
        synthetic = synthetic_field(service.engine.stats)
        choices = Choices(requests, len(body.prompt_options))
        answer = GenerateAnswer(body, prompt_options, choices, service.token_texts, synthetic)
        return await respond(service, request, answer, streamed=bool(body.stream))

    return router


def _plan(
    service: Service, prompt_options: Sequence[PromptOptions]
) -> list[tuple[PromptOptions, Request]]:
    """Return the engine requests of the prompts, each with its prompt's parameters."""
    planned: list[tuple[PromptOptions, Request]] = []
    expansion = Expansion()
    for one in prompt_options:
        prompts = [Prompt(prompt_ids(service, one.prompt))]
        form = one.sampling.form
        requests = service.plan(
            one.sampling, prompts, DEFAULT_MAX_TOKENS, form, expansion=expansion
        )
        planned += [(one, known_as(request, one.rid)) for request in requests]
    return planned


@dataclass(frozen=True)
class GenerateAnswer:
    """The answer of one request in flight. `prompt_options` has an entry per engine request."""

    body: GenerateRequest
    prompt_options: Sequence[PromptOptions]
    choices: Choices
    texts: TokenTexts
    synthetic: dict[str, float]

    async def whole(self, stream: OutputStream) -> Iterable[str]:
        """Return one object, or a list with one for each choice of each prompt."""
        await self.choices.collect(stream)
        bodies = map(self._body, self.choices.states)
        return json_pieces(next(bodies) if self.body.single else JsonList(bodies))

    async def events(self, stream: OutputStream) -> AsyncIterator[Iterable[str]]:
        """Yield the same objects as they grow, then the end. `index` tells them apart."""
        async for state, _ in self.choices.follow(stream):
            index = {} if self.body.single else {"index": state.index}
            yield event(self._body(state) | index)
        yield DONE

    def _body(self, state: ChoiceState) -> dict[str, Any]:
        return {
            "text": state.text,
            "output_ids": JsonNumbers(state.token_ids),
            "meta_info": self._meta_info(state),
            **self.synthetic,
        }

    def _meta_info(self, state: ChoiceState) -> dict[str, Any]:
        prompt_options = self.prompt_options[state.index]
        return {
            "id": prompt_options.rid or state.request.request_id,
            "finish_reason": finish_reason(state),
            "prompt_tokens": len(state.request.prompt_ids),
            "completion_tokens": len(state.token_ids),
            "cached_tokens": state.cached.total,
            "cached_tokens_details": cached_details(state.cached),
            "seed": state.seed,
            **speculation(state),
            **self._logprobs(state, prompt_options),
        }

    def _logprobs(self, state: ChoiceState, prompt_options: PromptOptions) -> dict[str, Any]:
        """Return [log-probability, id, text] per token; null for the first token of a prompt."""
        if (top := prompt_options.sampling.logprobs) is None:
            return {}
        output = self._places("output", state.token_ids, state.logprobs, top)
        start = (
            len(state.request.prompt_ids)
            if prompt_options.logprob_start is None
            else prompt_options.logprob_start
        )
        ids = state.request.prompt_ids[start:]
        entries: list[LogprobsOfToken | None] = list(state.prompt_logprobs[start:])
        return output | self._places("input", ids, [None, *entries[1:]][: len(ids)], top)

    def _places(
        self, name: str, ids: Sequence[int], entries: Sequence[LogprobsOfToken | None], top: int
    ) -> dict[str, Any]:
        pairs = list(zip(ids, entries, strict=True))
        chosen = (self._row(i, entry[i].logprob if entry else None) for i, entry in pairs)
        fields: dict[str, Any] = {f"{name}_token_logprobs": JsonList(chosen)}
        if top:
            fields[f"{name}_top_logprobs"] = JsonList(self._best(e, top) for _, e in pairs)
        return fields

    def _row(self, token_id: int, logprob: float | None) -> JsonText:
        text = self.texts.of(token_id).text if self.body.return_text_in_logprobs else NULL
        return JsonText(f"[{NULL if logprob is None else finite(logprob)},{token_id},{text}]")

    def _best(self, entry: LogprobsOfToken | None, top: int) -> JsonText:
        if entry is None:
            return NULL
        return JsonText(f"[{','.join([self._row(*one) for one in entry.best[:top]])}]")


def finish_reason(state: ChoiceState) -> dict[str, Any] | None:
    """Return an answer's finish reason in SGLang's format, or None before its end."""
    kind = state.finish_reason
    if kind is None:
        return None
    if kind == "length":
        return {"type": kind, "length": len(state.token_ids)}
    if kind == "stop":
        matched = state.token_ids[-1] if state.stop_reason is None else state.stop_reason
        return {"type": kind, "matched": matched}
    return {"type": kind, "message": "the server aborted the request"}


def cached_details(cached: TokensByTier) -> dict[str, int]:
    """Return SGLang's three tiers. Storage comprises everything below the host's memory."""
    storage = cached.disk + cached.remote
    return {"device": cached.device, "host": cached.host, "storage": storage}


def speculation(state: ChoiceState) -> dict[str, Any]:
    """Return SGLang's figures, {} without drafts. The accept length counts the prefill's token."""
    counts = state.acceptance
    if not counts.num_drafts:
        return {}
    return {
        "spec_accept_length": len(state.token_ids) / counts.num_drafts,
        "spec_accept_rate": counts.acceptance_rate,
        "spec_verify_ct": counts.num_drafts,
        "spec_num_correct_drafts": counts.num_accepted_tokens,
        "spec_num_proposed_drafts": counts.num_draft_tokens,
    }
