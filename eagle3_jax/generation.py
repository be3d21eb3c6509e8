"""Offline generation: runs the engine to completion for a list of prompts."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from eagle3_jax.engine import CollectedOutput, Engine, EngineConfig, Request
from eagle3_jax.engine.logprob_rows import LogprobsOfToken, PromptLogprobs
from eagle3_jax.engine.request import FinishReason
from eagle3_jax.engine.text import Tokenizer
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

MAX_BATCH = 8
LENGTH_STEP = 128
"""Sequence lengths are rounded up to this, so that calls of similar size share programs."""


@dataclass(frozen=True)
class Generation:
    """One finished answer.

    `token_ids` include the EOS or stop id and exclude tokens trimmed by a stop string. `accepted`
    has the accepted drafts of each round before trimming; prefill is not a round. Requested
    `logprobs` map, for each token, ids to Logprob(logprob, rank), that token first, then the best;
    `prompt_logprobs` do so for each prompt token, None for the first.
    """

    token_ids: list[int]
    finish_reason: FinishReason
    accepted: list[int]
    seed: int
    logprobs: list[LogprobsOfToken] | None = None
    prompt_logprobs: PromptLogprobs | None = None


def generate(
    target: Target,
    draft: Eagle3Draft | None,
    prompts: Sequence[Sequence[int]],
    sampling: SamplingParams | Sequence[SamplingParams],
    *,
    num_speculative_tokens: int = 3,
    tokenizer: Tokenizer | None = None,
    method: str = "coupled",
    exact: bool = False,
    synthetic_acceptance_length: float | None = None,
) -> list[Generation]:
    """Complete every prompt; with n > 1 a prompt's answers are adjacent, with rising seeds.

    With the method "coupled", seed and prompt determine the tokens, whatever the draft and k (in
    exact mode bit for bit). "standard" and "block" preserve only the distribution, and "synthetic",
    which takes the mean tokens committed per round, not even that (eagle3_jax.speculative.method).
    Without a draft, k matters only in exact mode, where it fixes the program. Raises ValueError for
    options that are not implemented and for prompts that cannot run.
    """
    params = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
    if len(params) != len(prompts):
        raise ValueError(f"got {len(prompts)} prompts but {len(params)} sampling parameters")
    requests = [
        request
        for index, (prompt, wanted) in enumerate(zip(prompts, params, strict=True))
        for request in expand(f"{index}", list(prompt), wanted)
    ]
    if not requests:
        return []
    k = num_speculative_tokens if draft is not None or exact else 0
    config = EngineConfig(
        num_speculative_tokens=k,
        max_model_len=_longest(requests, target.config.max_position_embeddings),
        max_num_seqs=MAX_BATCH if exact else min(len(requests), MAX_BATCH),
        batch_buckets=None if exact else (min(len(requests), MAX_BATCH),),
        exact=exact,
        rejection_sample_method=method,
        synthetic_acceptance_length=synthetic_acceptance_length,
    )
    return _run(Engine(target, draft, config, tokenizer=tokenizer), requests)


def expand(request_id: str, prompt_ids: list[int], sampling: SamplingParams) -> list[Request]:
    """Make the n requests of one prompt; request i of a seeded prompt uses seed + i."""
    return [
        Request(
            f"{request_id}-{i}",
            prompt_ids,
            replace(sampling, n=1, seed=None if sampling.seed is None else sampling.seed + i),
        )
        for i in range(sampling.n)
    ]


def _longest(requests: list[Request], max_position_embeddings: int) -> int:
    lengths = []
    for request in requests:
        if request.sampling.max_tokens is None:
            raise ValueError("offline generation needs max_tokens")
        lengths.append(len(request.prompt_ids) + request.sampling.max_tokens)
    rounded = -(-max(lengths) // LENGTH_STEP) * LENGTH_STEP
    return min(rounded, max_position_embeddings)


def _run(engine: Engine, requests: list[Request]) -> list[Generation]:
    collected = {request.request_id: CollectedOutput() for request in requests}
    seeds: dict[str, int] = {}
    for request in requests:
        engine.add(request)
    while engine.has_work:
        for output in engine.step():
            collected[output.request_id].add(output)
            seeds[output.request_id] = output.seed
    return [
        _put_together(collected[r.request_id], seeds[r.request_id], r.sampling) for r in requests
    ]


def _put_together(whole: CollectedOutput, seed: int, sampling: SamplingParams) -> Generation:
    assert whole.finish_reason, "the engine has work left"
    return Generation(
        whole.token_ids,
        whole.finish_reason,
        [r.accepted for r in whole.rounds],
        seed,
        None if sampling.logprobs is None else whole.logprobs,
        None if sampling.prompt_logprobs is None else whole.prompt_logprobs,
    )
