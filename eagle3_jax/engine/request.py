"""What callers hand to the engine and what they get back. Host values only."""

from dataclasses import dataclass, field
from typing import Literal

from eagle3_jax.engine.acceptance import Round
from eagle3_jax.engine.grammars.interface import CompiledGrammar
from eagle3_jax.engine.kv.tiers.tier import PageSource
from eagle3_jax.engine.kv.tokens_by_tier import NO_TOKENS, TokensByTier
from eagle3_jax.engine.logprob_rows import LogprobsOfToken, PromptLogprobs
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.vision.item import PlacedImage

BARS_EVERY_TOKEN = "the request's options bar every token"
GRAMMAR_FAILED = "structured_outputs are too complex to go on"
"""How the stop_reasons of errors begin that are the request's own."""
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Request:
    """One sequence to generate; a caller expands n > 1 into n requests with seed + i.

    cache_salt: only requests of the same salt share pages of the prefix cache. grammar: the form of
    the answer, if it has one and was compiled beforehand, so that the engine need not.
    source: where pages of the prompt may be had from. export_as: a name under which they are kept
    for another engine. Both need an engine with host memory.
    images: those of the prompt, in order; a placeholder outside of them is a token like others.
    client: whom the request is scheduled for: clients share the engine fairly. Changes no token.
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
        """Raises ValueError where prompt or options name an id that the vocabulary lacks."""
        last = vocab_size - 1
        for token in (min(self.prompt_ids), max(self.prompt_ids)) if self.prompt_ids else ():
            if not 0 <= token <= last:
                raise ValueError(f"prompt ids must be 0..{last}, got {token}")
        for name, token in self.sampling.largest_ids():
            if token > last:
                raise ValueError(f"{name}: token ids end at {last}; got {token}")


@dataclass(frozen=True)
class RequestOutput:
    """News of one request since its last output.

    token_ids and text are the new ones, already trimmed: token_ids includes the EOS or stop id and
    excludes what a stop string cuts. stop_reason is the stop id or string that ended it, None for
    EOS; after an error, what went wrong. rounds: those reported here; what they accepted is counted
    before trimming. origins: of each token of token_ids, 0 where the target chose it and i where it
    was accepted as draft i of its round (in a tree: at level i). cached: prompt tokens whose KV was
    found in the prefix cache, by tier. Where asked for, logprobs has one entry per token of
    token_ids, and prompt_logprobs, the same in every output, one per token of the prompt.
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
        """Prompt tokens that were not run again, wherever they were found."""
        return self.cached.total

    @property
    def accepted(self) -> tuple[int, ...]:
        """Accepted drafts of each round."""
        return tuple(r.accepted for r in self.rounds)


@dataclass(kw_only=True)
class CollectedOutput:
    """All that a request has put out so far. texts: in pieces, so that none is copied twice."""

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
        """The whole of it."""
        return "".join(self.texts)

    def take(self, output: RequestOutput) -> None:
        """Adds an output."""
        self.texts.append(output.text)
        self.token_ids.extend(output.token_ids)
        self.origins.extend(output.origins)
        self.logprobs.extend(output.logprobs)
        self.prompt_logprobs = output.prompt_logprobs
        self.rounds.extend(output.rounds)
        self.cached = output.cached
        self.finish_reason, self.stop_reason = output.finish_reason, output.stop_reason
