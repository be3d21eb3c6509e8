"""The comparison of KV caches against the model without any cache."""

import jax
import numpy as np
import pytest
from small_pair import PROMPTS, small_pair

from eagle3_jax import forward
from serve.bench.common.held_out import HeldOutPrompt
from serve.bench.studies import kv_cache
from serve.bench.studies.kv_cache import (
    SIZES,
    CacheRecord,
    answer_logprobs,
    compare_caches,
    measure_kv_scales,
)
from serve.demo.corpus import held_out_prompts
from serve.pair.loading import build_engine

ASKED = [HeldOutPrompt("facts", held_out_prompts("facts", 1)[0], ids) for ids in PROMPTS]


TOKENS = 12


@pytest.fixture(scope="module")
def record(pytestconfig: pytest.Config) -> CacheRecord:
    """Of all caches with --long."""
    with pytest.MonkeyPatch.context() as patch:
        if not pytestconfig.getoption("long"):
            patch.setattr(kv_cache, "CACHES", ("auto", "fp8"))
        return measured()


def measured() -> CacheRecord:
    scales, measured_on = measure_kv_scales(small_pair(), ASKED, 1, max_tokens=TOKENS)
    assert measured_on["prompts"] == len(ASKED) and measured_on["answer_tokens"] > 0
    return compare_caches(
        small_pair(), ASKED, 1, kv_cache_scale=scales, max_tokens=TOKENS, say=lambda _: None
    )


def test_fewer_bits_move_probabilities_further(record: CacheRecord) -> None:
    plain, *_, quarter = record.caches
    assert (plain.kv_cache_dtype, quarter.kv_cache_dtype) == ("auto", "fp8")
    assert (plain.same_answers, plain.moved) == (1.0, 0.0)
    moved = [cache.moved for cache in record.caches]
    assert moved == sorted(set(moved)) and moved[-1] < 0.1
    assert abs(quarter.loss - plain.loss) <= quarter.moved


def test_answers_are_scored_as_the_model_without_a_cache_scores_them() -> None:
    pair, answers = small_pair(), [[5, 9, 2, 11], [7], [0, 0], [3, 4, 5]]
    # The sizes of the record's first engine, whose programs there are.
    length = max(map(len, PROMPTS)) + TOKENS + 1
    engine = build_engine(pair, num_speculative_tokens=1, max_model_len=length, **SIZES)
    found = answer_logprobs(engine, ASKED, answers)
    expected = []
    for prompt, answer in zip(ASKED, answers, strict=True):
        logits = forward(pair.target, np.array([[*prompt.token_ids, *answer]])).logits[0]
        logprobs = jax.nn.log_softmax(logits)
        first = len(prompt.token_ids)
        expected += [float(logprobs[first + i - 1, token]) for i, token in enumerate(answer)]
    np.testing.assert_allclose(found, expected, atol=2e-4)
