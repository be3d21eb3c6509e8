"""What a smaller KV cache costs: accept length, right answers, and how far the law moves.

Every cache answers the same prompts greedily with the same draft. Then all are asked what they
think of the first one's answers, token by token, with the context in the cache of theirs.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eagle3_jax.engine import KVScales, Request
from eagle3_jax.engine.logprobs import PromptLogprobs
from eagle3_jax.sampling_params import SamplingParams
from serve.bench.accept import ANSWER_TOKENS, AcceptRow, measure_accept
from serve.bench.held_out import HeldOutPrompt
from serve.engine_messages import EngineLike
from serve.loading import LoadedPair, build_engine
from serve.notices import Say

CACHES = ("auto", "bfloat16", "fp8")
BATCH = 8


@dataclass(frozen=True)
class CacheResult:
    """One cache. rows: accept length and right answers by category, overall last.

    same_answers: share of prompts answered as the first cache answers them. loss: mean negative
    log-probability of the first cache's answers, nats a token. moved: mean distance of a token's
    log-probability from what it is with the first cache.
    """

    kv_cache_dtype: str
    rows: list[AcceptRow]
    same_answers: float
    loss: float
    moved: float

    @property
    def overall(self) -> AcceptRow:
        """All prompts."""
        return self.rows[-1]


@dataclass(frozen=True)
class CacheRecord:
    """What `eagle3-bench kv-cache` found."""

    num_speculative_tokens: int
    kv_cache_scale: float | KVScales
    prompts: int
    caches: list[CacheResult]


def compare_caches(
    pair: LoadedPair,
    prompts: Sequence[HeldOutPrompt],
    k: int,
    *,
    kv_cache_scale: float | KVScales,
    say: Say,
    max_tokens: int = ANSWER_TOKENS,
) -> CacheRecord:
    """Answers all prompts with each cache; `say` hears of every cache as it ends."""
    greedy = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    length = max(len(prompt.token_ids) for prompt in prompts) + max_tokens + 1
    results: list[CacheResult] = []
    given: list[list[int]] = []
    expected: list[float] = []
    for cache in CACHES:
        engine = build_engine(
            pair,
            num_speculative_tokens=k,
            max_model_len=length,
            max_num_seqs=BATCH,
            batch_buckets=(BATCH,),
            kv_cache_dtype=cache,
            kv_cache_scale=kv_cache_scale if cache == "fp8" else None,
            enable_structured_outputs=False,
        )
        rows, answers = measure_accept(engine, pair.tokenizer, prompts, greedy)
        given = given or answers
        told = answer_logprobs(engine, prompts, given)
        expected = expected or told
        moved = fmean(abs(a - b) for a, b in zip(told, expected, strict=True))
        same = fmean(a == b for a, b in zip(answers, given, strict=True))
        results.append(CacheResult(cache, rows, same, -fmean(told), moved))
        say(f"{cache}: accept length {rows[-1].accept_length:.2f}")
    return CacheRecord(k, kv_cache_scale, len(prompts), results)


def answer_logprobs(
    engine: EngineLike, prompts: Sequence[HeldOutPrompt], answers: Sequence[Sequence[int]]
) -> list[float]:
    """Log-probabilities of all answers' tokens, one after the other, as the engine sees them."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    given = zip(prompts, answers, strict=True)
    texts = [[*prompt.token_ids, *answer] for prompt, answer in given]
    told = prompt_logprobs(engine, [Request(f"{i}", t, sampling) for i, t in enumerate(texts)])
    found = []
    for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        for position in range(len(prompt.token_ids), len(text)):
            entry = told[f"{index}"][position]
            assert entry is not None, "only the first token of a prompt has none"
            found.append(entry[text[position]].logprob)
    return found


def prompt_logprobs(engine: EngineLike, requests: Sequence[Request]) -> dict[str, PromptLogprobs]:
    """What the engine tells of each prompt's tokens, by request id."""
    for request in requests:
        engine.add(request)
    told: dict[str, PromptLogprobs] = {}
    while engine.has_work:
        told |= {output.request_id: output.prompt_logprobs for output in engine.step()}
    return told
