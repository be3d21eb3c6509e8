"""What callers hand to the engine and what they get back. Host values only."""

from dataclasses import dataclass, field
from typing import Literal

from eagle3_jax.engine.acceptance import Round
from eagle3_jax.engine.grammar import CompiledGrammar
from eagle3_jax.engine.logprobs import LogprobsOfToken, PromptLogprobs
from eagle3_jax.sampling_params import SamplingParams

BARS_EVERY_TOKEN = "the request's options bar every token"
GRAMMAR_FAILED = "structured_outputs are too complex to go on"
"""How the stop_reasons of errors begin that are the request's own."""
FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Request:
    """One sequence to generate; a caller expands n > 1 into n requests with seed + i.

    cache_salt: only requests of the same salt share pages of the prefix cache. grammar: the form of
    the answer, if it has one and was compiled beforehand, so that the engine need not.
    """

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams
    cache_salt: str = ""
    grammar: CompiledGrammar | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RequestOutput:
    """News of one request since its last output.

    token_ids and text are the new ones, already trimmed: token_ids includes the EOS or stop id and
    excludes what a stop string cuts. stop_reason is the stop id or string that ended it, None for
    EOS; after an error, what went wrong. rounds: those reported here; what they accepted is counted
    before trimming. origins: of each token of token_ids, 0 where the target chose it and i where it
    was accepted as draft i of its round (in a tree: at level i). cached_tokens: prompt tokens whose
    KV was found in the prefix cache. Where asked for, logprobs has one entry per token of
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
    cached_tokens: int = 0
    logprobs: tuple[LogprobsOfToken, ...] = ()
    prompt_logprobs: PromptLogprobs = ()
    origins: tuple[int, ...] = ()

    @property
    def accepted(self) -> tuple[int, ...]:
        """Accepted drafts of each round."""
        return tuple(r.accepted for r in self.rounds)
