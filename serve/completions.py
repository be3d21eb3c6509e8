"""POST /v1/completions."""

from typing import Any

import fastapi
from fastapi import APIRouter, Response

from eagle3_jax.engine import RequestOutput
from serve.answer import answer
from serve.choices import ChoiceState
from serve.errors import invalid_request
from serve.protocol import CompletionRequest
from serve.responses import CompletionChoice
from serve.service import Service

DEFAULT_MAX_TOKENS = 16


class CompletionForm:
    """Text completions: chunks have the form of whole answers."""

    id_prefix = "cmpl"
    whole_object = "text_completion"
    chunk_object = "text_completion"
    prompt_ids_in_choice = True

    def whole(self, state: ChoiceState, shared: dict[str, Any]) -> CompletionChoice:
        """A finished choice."""
        return CompletionChoice(**shared, text="".join(state.text))

    def piece(self, output: RequestOutput, first: bool, shared: dict[str, Any]) -> CompletionChoice:
        """One output of a choice."""
        return CompletionChoice(**shared, text=output.text)


def completions_router(service: Service) -> APIRouter:
    """The endpoint over `service`."""
    router = APIRouter()

    @router.post("/v1/completions")
    async def create_completion(body: CompletionRequest, request: fastapi.Request) -> Response:
        service.check_model(body.model)
        service.engine.check_admitting()
        prompts = [_prompt_ids(service, prompt) for prompt in body.prompts()]
        if not prompts:
            raise invalid_request("there is no prompt", param="prompt")
        return await answer(
            service, request, body, CompletionForm(), prompts, DEFAULT_MAX_TOKENS, body.form
        )

    return router


def _prompt_ids(service: Service, prompt: str | list[int]) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    try:
        # Special tokens in a raw prompt are meant: its sender has applied a template.
        return service.tokenizer.encode(prompt, add_special=True)
    except ValueError as error:
        raise invalid_request(f"the prompt can't be encoded: {error}", param="prompt") from error
