"""HTTP endpoints of the tokenizer: POST /tokenize, POST /detokenize, GET /tokenizer_info.

The formats are vLLM's. A prompt gets the ids that /v1/completions would run, messages those of
/v1/chat/completions. `add_special_tokens` therefore has no effect: special strings in a prompt are
intended, and no token is prepended.
"""

from collections.abc import Mapping
from functools import partial

import fastapi
from fastapi import APIRouter, Response
from pydantic import BaseModel

from serve.asgi.auth import client_of
from serve.asgi.body_models import FirstErrorOnly
from serve.asgi.errors import invalid_request
from serve.asgi.json_body import JsonRoute, templating, tokenising
from serve.images.reader import Items
from serve.openai.chat import chat_prompt, read_images
from serve.openai.completions import prompt_ids
from serve.openai.logprob_forms import token_text
from serve.openai.protocol import TokenId, TokenizeRequest
from serve.openai.service import Service
from serve.openai.thinking_variables import keep_header

CONTEXTS = 8
"""Limit of a text, in context lengths. It may exceed one, because the text is not run."""


class TokenizeResponse(BaseModel):
    """The answer of POST /tokenize. `token_strs` has the text of each token, if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeRequest(FirstErrorOnly):
    """The body of POST /detokenize."""

    model: str | None = None
    tokens: list[TokenId]


class DetokenizeResponse(BaseModel):
    """The answer of POST /detokenize, with special tokens, and U+FFFD for partial characters."""

    prompt: str


def tokenization_router(service: Service) -> APIRouter:
    router, tokenizer = APIRouter(route_class=JsonRoute), service.tokenizer

    @router.post("/tokenize", response_model=TokenizeResponse)
    async def tokenize(body: TokenizeRequest, request: fastapi.Request) -> Response:
        service.check_model(body.model)
        if body.messages is None:
            return await tokenising(request, partial(_tokenize, service, body))
        images = await read_images(service, body.messages, client_of(request).name)
        return await templating(partial(_tokenize, service, body, images))

    @router.post("/detokenize", response_model=DetokenizeResponse)
    async def detokenize(body: DetokenizeRequest, request: fastapi.Request) -> Response:
        service.check_model(body.model)
        most = CONTEXTS * service.model.max_model_len
        if len(body.tokens) > most:
            message = f"tokens may have at most {most} entries; got {len(body.tokens)}"
            raise invalid_request(message, param="tokens")
        return await tokenising(request, partial(_detokenize, service, body))

    @router.get("/tokenizer_info")
    async def tokenizer_info() -> dict[str, str | None]:
        """Return the named tokens and the chat template; null for those the checkpoint lacks."""
        named = dict.fromkeys(("bos_token", "eos_token", "pad_token"))
        template = {"chat_template": tokenizer.template_text}
        return named | dict(tokenizer.named_tokens) | template

    return router


def _tokenize(service: Service, body: TokenizeRequest, images: Items | None = None) -> Response:
    """Tokenise and encode the answer. It may run in a thread."""
    headers: dict[str, str] = {}
    if body.prompt is None:
        ids = chat_prompt(service, body, images or {}, CONTEXTS).ids
        headers = keep_header(service, body)
    else:
        ids = prompt_ids(service, body.prompt, CONTEXTS)
    texts = [token_text(service.tokenizer, i) for i in ids] if body.return_token_strs else None
    length = service.model.max_model_len
    return _json(
        TokenizeResponse(count=len(ids), max_model_len=length, tokens=ids, token_strs=texts),
        headers,
    )


def _detokenize(service: Service, body: DetokenizeRequest) -> Response:
    data = b"".join(map(service.tokenizer.token_bytes, body.tokens))
    return _json(DetokenizeResponse(prompt=data.decode(errors="replace")))


def _json(body: BaseModel, headers: Mapping[str, str] | None = None) -> Response:
    return Response(body.model_dump_json(), media_type="application/json", headers=headers)
