"""Requests to the engine and their outputs. Host values only."""

from dataclasses import dataclass, field
from typing import Literal

from eagle3_jax.engine.acceptance import Round
from eagle3_jax.engine.grammars.interface import CompiledGrammar
from eagle3_jax.engine.logprob_rows import LogprobsOfToken, PromptLogprobs
from eagle3_jax.engine.page_tiers import NO_TOKENS, PageSource, TokensByTier
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import PlacedImage

BARS_EVERY_TOKEN = "the request's options bar every token"
GRAMMAR_FAILED = "structured_outputs are too complex to go on"
"""Prefixes of the stop_reason of errors that the request itself caused."""
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Request:
    """One sequence to generate; callers expand n > 1 into n requests with seed + i.

    Attributes:
        cache_salt: Only requests with the same salt share prefix cache pages.
        grammar: The answer's form, if it was compiled beforehand.
        source: Origin of pages of the prompt. Needs host memory.
        export_as: Name under which another engine can get the pages. Needs host memory.
        images: Images of the prompt, in order. Other placeholders are ordinary tokens.
        client: Client for fair scheduling; changes no token.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    cache_salt: str = ""
    grammar: CompiledGrammar | None = field(default=None, compare=False)
    source: PageSource | None = field(default=None, compare=False)
    export_as: str | None = None
    images: tuple[PlacedImage, ...] = ()
    client: str = field(default="", compare=False)

    def check_token_ids(self, vocab_size: int) -> None:
        """Raise ValueError if prompt or options name an id outside the vocabulary."""
        last = vocab_size - 1
        for token in (min(self.prompt_ids), max(self.prompt_ids)) if self.prompt_ids else ():
            if not 0 <= token <= last:
                raise ValueError(f"prompt ids must be 0..{last}, got {token}")
        for name, token in self.sampling.largest_ids():
            if token > last:
                raise ValueError(f"{name}: token ids end at {last}; got {token}")


@dataclass(frozen=True)
class RequestOutput:
    """Output of one request since its previous output.

    Attributes:
        token_ids, text: New and trimmed; token_ids includes the EOS or stop id and excludes what a
            stop string cuts.
        stop_reason: Stop id or string, None for EOS; after an error, the reason.
        rounds: Rounds reported here, with acceptance before trimming.
        cached: Prompt tokens found in the prefix cache, by tier.
        logprobs, prompt_logprobs: If requested, one entry per token of token_ids, and one per
            prompt token, the same in every output.
        origins: Per token of token_ids 0 if the target chose it, i if it was accepted as draft i of
            its round (in a tree: at level i), -i if that draft was looked up.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    rounds: tuple[Round, ...]
    prompt_tokens: int
    seed: int
    cached: TokensByTier = NO_TOKENS
    logprobs: tuple[LogprobsOfToken, ...] = ()
    prompt_logprobs: PromptLogprobs = ()
    origins: tuple[int, ...] = ()

    @property
    def cached_tokens(self) -> int:
        """Prompt tokens that were not run again, from any tier."""
        return self.cached.total

    @property
    def accepted(self) -> tuple[int, ...]:
        """Accepted drafts of each round."""
        return tuple(r.accepted for r in self.rounds)


@dataclass(kw_only=True)
class CollectedOutput:
    """All output of a request so far. `texts` are pieces, so that no text is copied twice."""

    texts: list[str] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    logprobs: list[LogprobsOfToken] = field(default_factory=list)
    prompt_logprobs: PromptLogprobs = ()
    rounds: list[Round] = field(default_factory=list)
    cached: TokensByTier = NO_TOKENS
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def add(self, output: RequestOutput) -> None:
        self.texts.append(output.text)
        self.token_ids.extend(output.token_ids)
        self.origins.extend(output.origins)
        self.logprobs.extend(output.logprobs)
        self.prompt_logprobs = output.prompt_logprobs
        self.rounds.extend(output.rounds)
        self.cached = output.cached
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
