"""Measured factors of a float8 cache hold what the pair writes into it."""

from pathlib import Path

from small_pair import PROMPTS, small_pair

from eagle3_jax.engine import EngineConfig, Request
from eagle3_jax.sampling.params import SamplingParams
from eagle3_tools.bench.acceptance.kv_scales import measure_kv_scales
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.held_out import HeldOutPrompt
from eagle3_tools.make_demo.corpus import held_out_prompts
from serve.options.engine import read_kv_scales, write_kv_scales
from serve.pair.loading import build_engine

ASKED = [HeldOutPrompt("facts", held_out_prompts("facts", 1)[0], ids) for ids in PROMPTS]
TOKENS = 12
CONFIG = EngineConfig(1, max_num_seqs=8, batch_buckets=(8,))
MOVED = 0.1
"""Nats a token by which float8 may move what the pair says."""


def test_with_measured_factors_float8_says_nearly_the_same(tmp_path: Path) -> None:
    pair = small_pair()
    scales, measured_on = measure_kv_scales(pair, ASKED, CONFIG, TOKENS)
    assert measured_on["prompts"] == len(ASKED) and measured_on["answer_tokens"] > 0
    write_kv_scales(tmp_path / "scales.json", scales, measured_on)
    read = read_kv_scales(tmp_path / "scales.json")
    assert read == scales
    plain = prompt_logprobs({})
    float8 = prompt_logprobs({"kv_cache_dtype": "fp8", "kv_cache_scale": read})
    coarse = prompt_logprobs({"kv_cache_dtype": "fp8", "kv_cache_scale": 1e-4})
    assert 0 < distance(plain, float8) < MOVED < distance(plain, coarse)


def distance(one: list[float], other: list[float]) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))


def prompt_logprobs(options: dict) -> list[float]:
    engine = build_engine(small_pair(), num_speculative_tokens=1, max_model_len=64, **options)
    sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
    said = drive(engine, [Request(f"{i}", ids, sampling) for i, ids in enumerate(PROMPTS)])
    found = []
    for index, ids in enumerate(PROMPTS):
        for token, entry in zip(ids[1:], said[f"{index}"].prompt_logprobs[1:], strict=True):
            assert entry is not None, "only the first token of a prompt has none"
            found.append(entry[token].logprob)
    return found
