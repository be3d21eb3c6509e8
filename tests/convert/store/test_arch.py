"""gfx942's 8-bit floats with doubled scales are the published values, exactly."""

import jax.numpy as jnp
import numpy as np
import pytest

from convert.store.parameters import (
    E4M3FN,
    E4M3FNUZ,
    Parameter,
    fnuz_scale,
    fnuz_values,
    for_arch,
)

CODES = np.arange(256, dtype=np.uint8)
NAN = (CODES & 0x7F) == 0x7F


def test_all_values_are_equal_in_float64() -> None:
    values = CODES[~NAN].view(E4M3FN)
    for scale in (np.float32(0.0123), np.array(3.5, jnp.bfloat16)[()]):
        converted = fnuz_values(values)
        assert converted.dtype == E4M3FNUZ
        doubled = fnuz_scale(np.asarray(scale))
        assert doubled.dtype == np.asarray(scale).dtype
        left = converted.astype(np.float64) * np.float64(doubled)
        np.testing.assert_array_equal(left, values.astype(np.float64) * np.float64(scale))


@pytest.mark.parametrize("code", CODES[NAN])
def test_both_nans_are_refused(code: int) -> None:
    with pytest.raises(ValueError, match="NaN"):
        fnuz_values(np.array([0, code], np.uint8).view(E4M3FN))


def test_only_fp8_weights_and_their_scales_change() -> None:
    def parameter(path: str, value: np.ndarray) -> Parameter:
        return Parameter(path, value.shape, value.dtype, value.copy)

    given = [
        parameter("q.values", np.array([1.5, -0.0], E4M3FN)),
        parameter("q.scale", np.array([3.0], np.float32)),
        parameter("int4.values", np.array([0x80], np.uint8)),
        parameter("int4.scale", np.array([3.0], np.float32)),
    ]
    assert for_arch(given, "gfx950") == tuple(given)
    values, scale, *others = for_arch(given, "gfx942")
    assert values.dtype == E4M3FNUZ and values.read().dtype == E4M3FNUZ
    np.testing.assert_array_equal(values.read().astype(np.float32), [0.75, 0.0])
    assert scale.read() == 6.0
    assert others == given[2:]
    with pytest.raises(ValueError, match="gfx950, gfx942"):
        for_arch(given, "gfx90a")
