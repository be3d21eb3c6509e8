"""What callers hand to the engine and what they get back. Host values only."""

from dataclasses import dataclass
from typing import Literal

from eagle3_jax.sampling_params import SamplingParams

FinishReason = Literal["stop", "length", "abort", "error"]


@dataclass(frozen=True)
class Request:
    """One sequence to generate; a caller expands n > 1 into n requests with seed + i."""

    request_id: str
    prompt_ids: list[int]
    sampling: SamplingParams


@dataclass(frozen=True)
class RequestOutput:
    """News of one request since its last output.

    token_ids and text are the new ones, already trimmed: token_ids includes the EOS or stop id and
    excludes what a stop string cuts. stop_reason is the stop id or string that ended it, None for
    EOS; after an error, what went wrong. accepted: accepted drafts of each round reported here,
    before trimming. cached_tokens: prompt tokens whose KV was found in the prefix cache.
    """

    request_id: str
    token_ids: tuple[int, ...]
    text: str
    finish_reason: FinishReason | None
    stop_reason: int | str | None
    accepted: tuple[int, ...]
    prompt_tokens: int
    seed: int
    cached_tokens: int = 0
