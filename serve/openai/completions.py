"""HTTP endpoint for completions: POST /v1/completions."""

from itertools import chain
from typing import Any

import fastapi
from fastapi import APIRouter, Response

from convert.text.tokenizer import TooManyTokens
from eagle3_jax.engine import Request
from serve.asgi.auth import client_of
from serve.asgi.errors import ApiError, context_exceeded, invalid_request
from serve.asgi.json_body import JsonRoute, tokenising
from serve.engine.choices import ChoiceState, Part
from serve.images.reader import Prompt
from serve.openai.answer import answer
from serve.openai.logprob_forms import TextOffsets, TokenTexts, completion_logprobs
from serve.openai.protocol import CompletionRequest
from serve.openai.service import Service, TokenizerLike

DEFAULT_MAX_TOKENS = 16


class CompletionBodyFormat:
    """Formats text completions. Chunks look like whole answers; an echo comes with the first."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    prompt_in_choice = True

    def __init__(
        self, body: CompletionRequest, tokenizer: TokenizerLike, texts: TokenTexts
    ) -> None:
        self._body = body
        self._tokenizer, self._texts = tokenizer, texts
        self._offsets: dict[int, TextOffsets] = {}
        self._echoed: tuple[list[int], str] = ([], "")
        """Token ids and text of the last echoed prompt, which is shared by its choices."""

    def choice(
        self, state: ChoiceState, part: Part, first: bool, shared: dict[str, Any]
    ) -> dict[str, Any]:
        prompt = state.request.prompt_ids if self._body.echo and first else []
        echo, logprobs = self._echo(prompt), None
        if self._body.logprobs is not None:
            offsets = TextOffsets(self._tokenizer, skip_special=False).take(prompt)
            skips = self._body.skips_special
            answer = TextOffsets(self._tokenizer, len(echo), skip_special=skips)
            answer = self._offsets.setdefault(state.index, answer)
            logprobs = completion_logprobs(
                self._texts,
                [*prompt, *part.token_ids],
                [*(part.prompt_logprobs if prompt else ()), *part.logprobs],
                chain(offsets, answer.take(part.token_ids)),
                self._body.logprobs,
            )
        return {**shared, "logprobs": logprobs, "text": echo + part.text}

    def _echo(self, prompt: list[int]) -> str:
        if prompt is not self._echoed[0]:
            text = b"".join(map(self._tokenizer.token_bytes, prompt)).decode(errors="replace")
            self._echoed = (prompt, text)
        return self._echoed[1]


def completions_router(service: Service) -> APIRouter:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/completions")
    async def create_completion(body: CompletionRequest, request: fastapi.Request) -> Response:
        service.check_model(body.model)
        given = body.prompts()
        service.engine.check_room(len(given) * body.num_choices, client_of(request).name)
        if not given:
            raise invalid_request(
                "prompt: expected a text or token ids, got an empty list", param="prompt"
            )

        def plan() -> tuple[Request, ...]:
            prompts = [Prompt(prompt_ids(service, prompt)) for prompt in given]
            return service.plan(body, prompts, DEFAULT_MAX_TOKENS, body.form)

        requests = await tokenising(request, plan)
        form = CompletionBodyFormat(body, service.tokenizer, service.token_texts)
        return await answer(service, request, body, form, requests, len(given))

    return router


def prompt_ids(service: Service, prompt: str | list[int], contexts: int = 1) -> list[int]:
    """Return a prompt's ids. Raises 400 for none, or for more than `contexts` context lengths."""
    if not isinstance(prompt, str):
        return prompt
    try:
        # Special tokens in a raw prompt are intended: its sender has applied a template.
        return service.tokenizer.encode(prompt, True, contexts * service.model.max_model_len)
    except TooManyTokens as error:
        raise too_long(service, error) from error
    except ValueError as error:
        raise invalid_request(f"the prompt can't be encoded: {error}", param="prompt") from error


def too_long(service: Service, error: TooManyTokens) -> ApiError:
    """Return the error for a text whose encoding stopped at its token limit."""
    return context_exceeded(service.model.max_model_len, f"more than {error.most}")
