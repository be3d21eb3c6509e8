"""The cost of a smaller KV cache: accept length, right answers, how far probabilities move.

Every cache answers the same prompts greedily with the same draft. Then all are asked what they
think of the first one's answers, token by token, with the context in the cache of theirs.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console

from eagle3_jax.engine import EngineConfig, KVScales, Request
from eagle3_jax.engine.kv.peaks import HEADROOM
from eagle3_jax.sampling.params import SamplingParams
from serve.bench.common.accept_length import ANSWER_TOKENS, AcceptRow, measure_accept
from serve.bench.common.command import finish, given_pair
from serve.bench.common.conditions import conditions
from serve.bench.common.drive import EIGHT_SLOTS, drive
from serve.bench.common.flags import add_pair_flags, add_shared
from serve.bench.common.held_out import HeldOutPrompt, held_out
from serve.engine.messages import EngineLike
from serve.options.engine import add_scale_flag, read_scale
from serve.options.kv_scale_file import write_kv_scales
from serve.pair.loading import LoadedPair, build_engine
from serve.pair.notices import Say, say_on_stderr
from serve.text_table import text_table

CACHES = ("auto", "bfloat16", "fp8")
SIZES = {**EIGHT_SLOTS, "enable_structured_outputs": False}


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


@dataclass(frozen=True)
class CacheRecord:
    """What `eagle3-bench kv-cache` found."""

    num_speculative_tokens: int
    kv_cache_scale: float | KVScales
    prompts: int
    caches: list[CacheResult]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The pair, k, how many prompts, and the factors of fp8."""
    add_pair_flags(parser)
    add_shared(parser, "--num-speculative-tokens")
    add_shared(parser, "--prompts", default=40)
    factors = parser.add_mutually_exclusive_group()
    add_scale_flag(factors)
    factors.add_argument(
        "--measure", metavar="FILE", help="write factors for fp8 there, and compare nothing"
    )


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compares caches of several dtypes, or writes the factors of one."""
    given = flags.kv_cache_scale
    scale = None if given is None else read_scale(given)
    if scale is not None:
        EngineConfig(kv_cache_dtype="fp8", kv_cache_scale=scale)  # Refuses it before it loads.
    found, pair = conditions(), given_pair(flags)
    prompts = held_out(pair.tokenizer, flags.prompts)
    if scale is None:
        scale, measured = measure_kv_scales(pair, prompts, flags.k)
        if flags.measure:
            write_kv_scales(Path(flags.measure), scale, measured)
            console.print(f"{flags.measure}: {len(scale.target)} + {len(scale.draft)} factors")
            return 0
    result = compare_caches(pair, prompts, flags.k, kv_cache_scale=scale, say=say_on_stderr)
    print_result(console, result)
    return finish(flags, "kv_cache", found, result)


def print_result(console: Console, result: CacheRecord) -> None:
    """Accept length and accuracy of every KV cache."""
    sizes = f"{result.prompts} held-out prompts, greedy, k={result.num_speculative_tokens}"
    scale = result.kv_cache_scale
    if isinstance(scale, KVScales):
        each = (*scale.target, *scale.draft)
        factors = f"{len(each)} factors {min(each):.2g} to {max(each):.2g}"
    else:
        factors = f"factor {scale:g}"
    headings = ("cache", "accept length", "right", "same answers", "nats a token", "moved by")
    table = text_table(f"KV caches, {sizes}, fp8 with {factors}", headings, left=("cache",))
    for cache in result.caches:
        table.add_row(
            cache.kv_cache_dtype,
            f"{cache.rows[-1].accept_length:.3f}",
            f"{cache.rows[-1].right:.1%}",
            f"{cache.same_answers:.1%}",
            f"{cache.loss:.5f}",
            f"{cache.moved:.5f}",
        )
    console.print(table)


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
            kv_cache_dtype=cache,
            kv_cache_scale=kv_cache_scale if cache == "fp8" else None,
            **SIZES,
        )
        rows, answers = measure_accept(engine, pair.tokenizer, prompts, greedy)
        given = given or answers
        logprobs = answer_logprobs(engine, prompts, given)
        expected = expected or logprobs
        moved = fmean(abs(a - b) for a, b in zip(logprobs, expected, strict=True))
        same = fmean(a == b for a, b in zip(answers, given, strict=True))
        results.append(CacheResult(cache, rows, same, -fmean(logprobs), moved))
        say(f"{cache}: accept length {rows[-1].accept_length:.2f}")
    return CacheRecord(k, kv_cache_scale, len(prompts), results)


def answer_logprobs(
    engine: EngineLike, prompts: Sequence[HeldOutPrompt], answers: Sequence[Sequence[int]]
) -> list[float]:
    """Log-probabilities of all answers' tokens, one after the other, as the engine sees them."""
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    given = zip(prompts, answers, strict=True)
    texts = [[*prompt.token_ids, *answer] for prompt, answer in given]
    said = drive(engine, (Request(f"{i}", text, sampling) for i, text in enumerate(texts)))
    found = []
    for index, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
        for position in range(len(prompt.token_ids), len(text)):
            entry = said[f"{index}"].prompt_logprobs[position]
            assert entry is not None, "only the first token of a prompt has none"
            found.append(entry[text[position]].logprob)
    return found


def measure_kv_scales(
    pair: LoadedPair,
    prompts: Sequence[HeldOutPrompt],
    k: int,
    *,
    max_tokens: int = ANSWER_TOKENS,
) -> tuple[KVScales, dict[str, Any]]:
    """Factors with room for HEADROOM times the largest value of each pool, and what they are from.

    The pair answers all prompts greedily with the cache of its own dtype, which is looked through
    after every step: of rows that are written twice within one only the last is seen.
    """
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    engine = build_engine(
        pair,
        num_speculative_tokens=k if pair.draft else 0,
        max_model_len=max(len(prompt.token_ids) for prompt in prompts) + max_tokens + 1,
        **SIZES,
    )
    for index, prompt in enumerate(prompts):
        engine.add(Request(f"{index}", prompt.token_ids, sampling))
    peaks = engine.kv_peaks()
    while engine.has_work:
        engine.step()
        peaks = peaks.merged(engine.kv_peaks())
    stats = engine.stats()
    measured_on = {
        "headroom": HEADROOM,
        "prompts": len(prompts),
        "prompt_tokens": stats.prompt_tokens,
        "answer_tokens": stats.generation_tokens,
    }
    return peaks.scales, measured_on
