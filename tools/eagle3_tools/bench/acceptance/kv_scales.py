"""Factors of a float8 KV cache, measured on held-out prompts."""

from collections.abc import Sequence
from typing import Any

from eagle3_jax.engine import EngineConfig, KVScales, Request
from eagle3_jax.engine.kv.peaks import HEADROOM
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.common.held_out import HeldOutPrompt
from serve.pair.loading import LoadedPair, build_engine, fit_length


def measure_kv_scales(
    pair: LoadedPair, prompts: Sequence[HeldOutPrompt], config: EngineConfig, max_tokens: int
) -> tuple[KVScales, dict[str, Any]]:
    """Factors with room for HEADROOM times the largest value of each pool, and how much was read.

    The pair answers all prompts greedily with a cache of its own dtype, which is searched after
    every step: of rows that are written twice within a step only the last counts.
    """
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, seed=0)
    length = max(len(prompt.token_ids) for prompt in prompts) + max_tokens + 1
    engine = build_engine(pair, fit_length(config, length, pair.target.config))
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
