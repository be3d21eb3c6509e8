"""Caches of fewer bits: what they keep, and what they must not change."""

import jax
import numpy as np
import pytest
from driving import drive, sizes

from eagle3_jax.cache import rows_and_scale
from eagle3_jax.engine import Engine, KVScales, Request
from eagle3_jax.engine.kv.peaks import KVPeaks
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.sampling.params import SamplingParams

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


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


def test_factors_are_positive_and_one_for_each_pool(target: Target) -> None:
    for scale in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="must be positive and finite"):
            KVScales((1.0, scale))
    scales = KVScales((1.0,))
    with pytest.raises(ValueError, match=r"factors for \d pools .* there are 2 and 0: measure"):
        Engine(target, None, sizes(0, kv_cache_dtype="fp8", kv_cache_scale=scales))
