"""Factors of a float8 KV cache, measured: what a pair's pools hold while it reads and answers."""

from collections.abc import Sequence
from typing import Any

from eagle3_jax.engine import KVScales, Request
from eagle3_jax.engine.kv_peaks import HEADROOM
from eagle3_jax.sampling_params import SamplingParams
from serve.bench.accept import ANSWER_TOKENS
from serve.bench.held_out import HeldOutPrompt
from serve.loading import LoadedPair, build_engine

BATCH = 8


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
        max_num_seqs=BATCH,
        batch_buckets=(BATCH,),
        enable_structured_outputs=False,
    )
    for index, prompt in enumerate(prompts):
        engine.add(Request(f"{index}", prompt.token_ids, sampling))
    peaks = engine.kv_peaks()
    while engine.has_work:
        engine.step()
        peaks = peaks.merged(engine.kv_peaks())
    stats = engine.stats()
    told = {
        "headroom": HEADROOM,
        "prompts": len(prompts),
        "prompt_tokens": stats.prompt_tokens,
        "answer_tokens": stats.generation_tokens,
    }
    return peaks.scales, told
