"""Caches of fewer bits: what they keep, and what they must not change."""

import jax
import numpy as np
import pytest
from driving import Answer, drive, sizes

from eagle3_jax.cache import rows_and_scale
from eagle3_jax.engine import Engine, KVScales, Request
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.kv.peaks import KVPeaks
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


@pytest.fixture(scope="module")
def exact_fp8(target: Target, requests: list[Request]) -> dict[str, Answer]:
    engine = Engine(target, None, sizes(3, exact=True, kv_cache_dtype="fp8", kv_cache_scale=1.0))
    answers: dict[str, Answer] = {}
    for request in requests:
        answers |= drive(engine, [request])
    return answers


def test_float8_moves_the_distribution_a_little_and_not_for_nothing(
    exact_fp8: dict[str, Answer], plain: dict[str, Answer]
) -> None:
    """Answers begin as with float32 and part somewhere: the cache is really of fewer bits."""
    begun = [a.token_ids[:1] == plain[name].token_ids[:1] for name, a in exact_fp8.items()]
    assert np.mean(begun) > 0.8
    assert any(a.token_ids != plain[name].token_ids for name, a in exact_fp8.items())


def test_pools_take_the_bytes_of_their_dtype(target: Target) -> None:
    """One float8 a value and one factor a pool; every row that was written is there."""
    scales = KVScales((0.5, 0.25), (9.0, 9.0))  # Of a draft too, which this engine has not.
    engine = Engine(target, None, sizes(0, kv_cache_dtype="fp8", kv_cache_scale=scales))
    drive(engine, [Request("a", [1, 2, 3], GREEDY)])
    pools = engine._runner.executor.state.target_pools
    for pool, expected in zip(pools, scales.target, strict=True):
        values, scale = rows_and_scale(pool)
        assert values.dtype == jax.numpy.float8_e4m3fn
        assert scale is not None and float(scale) == expected
        assert np.asarray(values).view(np.uint8).any()


def test_peaks_are_those_of_what_was_written(target: Target, draft: Eagle3Draft) -> None:
    """With float8 they are near those of the model's own numbers, and saturate at 448 factors."""
    one = [Request("a", [1, 2, 3], GREEDY)]
    own = Engine(target, draft, sizes(3))
    drive(own, one)
    peaks = own.kv_peaks()
    for pool, peak in zip(own._runner.executor.state.target_pools, peaks.target, strict=True):
        assert peak == np.abs(np.asarray(rows_and_scale(pool)[0][1:])).max() > 0
    assert len(peaks.draft) == 2 and peaks.merged(KVPeaks((0, 99), (0, 0))).target[1] == 99
    tight = KVScales((peaks.target[0] / 448, peaks.target[1] / 896), peaks.scales.draft)
    engine = Engine(target, draft, sizes(3, kv_cache_dtype="fp8", kv_cache_scale=tight))
    drive(engine, one)
    np.testing.assert_allclose(
        engine.kv_peaks().target, [peaks.target[0], peaks.target[1] / 2], rtol=1e-6
    )
    np.testing.assert_allclose(engine.kv_peaks().draft, peaks.draft, rtol=0.07)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kv_cache_dtype": "int8"}, "auto or bfloat16 or fp8, got 'int8'"),
        ({"kv_cache_dtype": "fp8", "kv_cache_scale": 0.0}, "must be positive, got 0.0"),
        ({"kv_cache_scale": 2.0}, "kv_cache_dtype must be fp8"),
        ({"kv_cache_dtype": "fp8"}, "fp8 needs kv_cache_scale: measured factors"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        EngineConfig(**given)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("target_scales", [(1.0,), (1.0, 1.0, 1.0)])
def test_factors_of_another_model_are_refused(
    target: Target, target_scales: tuple[float, ...]
) -> None:
    scales = KVScales(target_scales)
    with pytest.raises(ValueError, match=r"factors for \d pools .* there are 2 and 0: measure"):
        Engine(target, None, sizes(0, kv_cache_dtype="fp8", kv_cache_scale=scales))


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_factors_are_positive_numbers(scale: float) -> None:
    with pytest.raises(ValueError, match="must be positive and finite"):
        KVScales((1.0, scale))
