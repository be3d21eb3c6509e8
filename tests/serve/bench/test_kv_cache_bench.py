"""The comparison of KV caches against the model without any cache."""

import jax
import numpy as np
import pytest
from small_pair import PROMPTS, small_pair

from eagle3_jax import forward
from serve.bench.common.held_out import HeldOutPrompt
from serve.bench.studies.kv_cache import (
    CACHES,
    CacheRecord,
    answer_logprobs,
    compare_caches,
    measure_kv_scales,
)
from serve.demo.corpus import held_out_prompts
from serve.pair.loading import build_engine

ASKED = [HeldOutPrompt("facts", held_out_prompts("facts", 1)[0], ids) for ids in PROMPTS]


@pytest.fixture(scope="module")
def record() -> CacheRecord:
    scales, measured_on = measure_kv_scales(small_pair(), ASKED, 1, max_tokens=12)
    assert measured_on["prompts"] == len(ASKED) and measured_on["answer_tokens"] > 0
    return compare_caches(
        small_pair(), ASKED, 1, kv_cache_scale=scales, max_tokens=12, say=lambda _: None
    )


def test_fewer_bits_move_probabilities_further(record: CacheRecord) -> None:
    plain, half, quarter = record.caches
    assert [cache.kv_cache_dtype for cache in record.caches] == list(CACHES)
    assert (plain.same_answers, plain.moved) == (1.0, 0.0)
    assert 0 < half.moved < quarter.moved < 0.1
    assert abs(quarter.loss - plain.loss) <= quarter.moved


def test_answers_are_scored_as_the_model_without_a_cache_scores_them() -> None:
    pair, answers = small_pair(), [[5, 9, 2, 11], [7], [0, 0], [3, 4, 5]]
    engine = build_engine(pair, num_speculative_tokens=0, max_num_seqs=2, batch_buckets=(2,))
    found = answer_logprobs(engine, ASKED, answers)
    expected = []
    for prompt, answer in zip(ASKED, answers, strict=True):
        logits = forward(pair.target, np.array([[*prompt.token_ids, *answer]])).logits[0]
        logprobs = jax.nn.log_softmax(logits)
        first = len(prompt.token_ids)
        expected += [float(logprobs[first + i - 1, token]) for i, token in enumerate(answer)]
    np.testing.assert_allclose(found, expected, atol=2e-4)
