"""gfx942's 8-bit floats with doubled scales are the published values, exactly."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
import pytest

from convert.store.parameters import E4M3FN, E4M3FNUZ, Parameter, for_arch

CODES = np.arange(256, dtype=np.uint8)
NAN = (CODES & 0x7F) == 0x7F


def parameters(**values: np.ndarray) -> Sequence[Parameter]:
    """`q_values` becomes the parameter `q.values`."""
    named = {name.replace("_", "."): value for name, value in values.items()}
    return [Parameter(path, v.shape, v.dtype, v.copy) for path, v in named.items()]


def test_all_values_are_equal_in_float64() -> None:
    values = CODES[~NAN].view(E4M3FN)
    for scale in (np.array(0.0123, np.float32), np.array(3.5, jnp.bfloat16)):
        given = parameters(q_values=values, q_scale=scale)
        converted, doubled = (parameter.read() for parameter in for_arch(given, "gfx942"))
        assert (converted.dtype, doubled.dtype) == (E4M3FNUZ, scale.dtype)
        left = converted.astype(np.float64) * doubled.astype(np.float64)
        np.testing.assert_array_equal(left, values.astype(np.float64) * scale.astype(np.float64))


@pytest.mark.parametrize("code", CODES[NAN])
def test_both_nans_are_refused(code: int) -> None:
    (values,) = parameters(q_values=np.array([0, code], np.uint8).view(E4M3FN))
    with pytest.raises(ValueError, match=r"q\.values: fp8 values hold NaN"):
        for_arch([values], "gfx942")[0].read()


def test_only_fp8_weights_and_their_scales_change() -> None:
    given = parameters(
        q_values=np.array([1.5, -0.0], E4M3FN),
        q_scale=np.array([3.0], np.float32),
        int4_values=np.array([0x80], np.uint8),
        int4_scale=np.array([3.0], np.float32),
    )
    assert for_arch(given, "gfx950") == tuple(given)
    values, _, *others = for_arch(given, "gfx942")
    assert values.dtype == E4M3FNUZ and others == given[2:]
    with pytest.raises(ValueError, match="gfx950, gfx942"):
        for_arch(given, "gfx90a")
