"""State shared by all endpoints: the model, the engine, defaults, and request checks."""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol

from eagle3_jax.engine import Request
from eagle3_jax.engine.grammars.interface import NO_GRAMMARS, CompiledGrammar
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import StructuredOutputs, ThinkingBudget
from serve.asgi.errors import ApiError, context_exceeded, invalid_request, shortened
from serve.asgi.in_flight import InFlightRequests
from serve.chat_format.format import PLAIN, ChatReading
from serve.chat_format.reasoning import SpecialTokens
from serve.chat_format.shown_roles import ShownRoles
from serve.engine.grammar_pool import GrammarPool
from serve.engine.thread import EngineThread
from serve.images.reader import ImageReader, NoImages, Prompt
from serve.kv_transfer.transfers import Transfers
from serve.openai.expansion import Expansion
from serve.openai.logprob_forms import TokenTexts
from serve.openai.protocol import GenerationRequest
from serve.options.serve_options import SpecMetricsLevel
from serve.telemetry.metrics import Metrics


class TokenizerLike(SpecialTokens, Protocol):
    """The methods of a tokenizer that the server uses (`convert.text.tokenizer.Tokenizer`)."""

    @property
    def named_tokens(self) -> Mapping[str, str]: ...
    @property
    def template_text(self) -> str | None: ...
    def encode_chat(
        self, messages: Sequence[Any], most: int | None = None, /, **kwargs: Any
    ) -> list[int]: ...


@dataclass(frozen=True)
class ModelInfo:
    """The served model as clients see it."""

    names: tuple[str, ...]
    root: str
    max_model_len: int
    created: int = field(default_factory=lambda: int(time.time()))


@dataclass(frozen=True)
class Service:
    """State shared by all endpoints.

    Attributes:
        default_sampling: SamplingParams fields and the default `max_tokens`.
        draw_seed: returns the seed of a request that has none.
        spec_metrics: level of detail about speculation in responses.
        template_kwargs: template variables, unless a request sets them.
        strict_tools: makes every tool strict.
        thinking_token_budget: the budget of requests that set none.
    """

    model: ModelInfo
    tokenizer: TokenizerLike
    engine: EngineThread
    metrics: Metrics
    default_sampling: Mapping[str, Any]
    draw_seed: Callable[[], int]
    spec_metrics: SpecMetricsLevel = "none"
    grammars: GrammarPool | None = None
    reading: ChatReading = PLAIN
    template_kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    strict_tools: bool = False
    thinking_token_budget: int | None = None
    in_flight: InFlightRequests = field(default_factory=InFlightRequests)
    transfers: Transfers | None = None
    images: ImageReader | NoImages = field(default_factory=NoImages)

    @cached_property
    def roles(self) -> ShownRoles:
        return ShownRoles(self.tokenizer, self.template_kwargs)

    @cached_property
    def token_texts(self) -> TokenTexts:
        return TokenTexts(self.tokenizer)

    def check_model(self, name: str | None) -> None:
        """Raise 404 for a model that is not served. No name means the served model."""
        if name is not None and name not in self.model.names:
            served = ", ".join(self.model.names)
            message = f"the model {name[:200]!r} does not exist; this server has {served}"
            raise ApiError(404, message, param="model", code="model_not_found")

    def plan(
        self,
        body: GenerationRequest,
        prompts: Sequence[Prompt],
        default_max_tokens: int | None,
        outputs: StructuredOutputs | None = None,
        thinking: ThinkingBudget | None = None,
        expansion: Expansion | None = None,
    ) -> tuple[Request, ...]:
        """Return one engine request per choice, prompt by prompt.

        Raises 400 for a request that cannot run. `expansion` is that of the HTTP request, if
        several calls plan it.
        """
        run = uuid.uuid4().hex
        requests: list[Request] = []
        expansion = expansion or Expansion()
        options = self._options(body, expansion, len(prompts) * body.num_choices)
        for prompt in prompts:
            requested = body.token_limit
            room = self._check_prompt(prompt.ids, None if body.ends_with_context else requested)
            # The requested limit, or the default if it fits.
            usual = options.get("max_tokens") or default_max_tokens or room
            limit = None if requested is None else min(requested, room)
            limit = expansion.add(body, len(prompt.ids), limit, min(usual, room))
            seed = self.draw_seed() if body.seed is None else body.seed
            for sibling in range(body.num_choices):
                if body.kv_transfer_params and body.kv_transfer_params.do_remote_decode:
                    # The consumer generates the tokens after the first.
                    limit, options = 1, options | {"min_tokens": 0}
                params = _checked(
                    **options | {"max_tokens": limit, "seed": seed + sibling},
                    structured_outputs=outputs,
                    thinking_budget=thinking,
                )
                name, salt = f"{run}-{len(requests)}", body.cache_salt or ""
                requests.append(Request(name, prompt.ids, params, salt, images=prompt.images))
        return tuple(requests)

    def end_transfers(self, requests: Sequence[Request]) -> None:
        """Release the pages that these ended requests did not use."""
        if self.transfers is not None:
            for request in requests:
                self.transfers.ended(request)

    async def compile_grammars(self, requests: Sequence[Request]) -> tuple[Request, ...]:
        """Compile the grammars of requests in threads. Raises Refused for an impossible one."""
        forms = dict.fromkeys(request.sampling.structured_outputs for request in requests)
        compiled = {form: await self._compiled(form) for form in forms}
        return tuple(
            replace(request, grammar=compiled[request.sampling.structured_outputs])
            for request in requests
        )

    async def _compiled(self, form: StructuredOutputs | None) -> CompiledGrammar | None:
        if form is None:
            return None
        if self.grammars is None:
            raise invalid_request(NO_GRAMMARS, param=form.asked_by, code="unsupported_option")
        return await self.grammars.compile(form)

    def _options(
        self, body: GenerationRequest, expansion: Expansion, num_requests: int
    ) -> dict[str, Any]:
        """Return the sampling options of every choice. Raises 400 if they name too many tokens."""
        options = {**self.default_sampling, **body.sampling_options()}
        try:
            options["bad_words_ids"] = expansion.spell(self.tokenizer, body.bad_words or ())
        except ValueError as error:
            raise invalid_request(str(error), param="bad_words") from error
        expansion.add_options(options, num_requests)
        return options

    def _check_prompt(self, prompt: Sequence[int], max_tokens: int | None) -> int:
        """Return how many tokens fit after the prompt."""
        if not prompt:
            raise invalid_request("the prompt has no tokens", param="prompt")
        room = self.model.max_model_len - len(prompt)
        if room < max(1, max_tokens or 1):
            also = f" and max_tokens is {max_tokens}" if max_tokens else ""
            param = "max_tokens" if room >= 1 else "prompt"
            context = self.model.max_model_len
            raise context_exceeded(context, f"{len(prompt)}{also}", param=param)
        return room


def _checked(**options: Any) -> SamplingParams:
    try:
        return SamplingParams(**options)
    except ValueError as error:
        raise invalid_request(shortened(str(error))) from error
