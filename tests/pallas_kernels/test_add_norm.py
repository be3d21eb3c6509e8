import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_kernels import add_norm
from pallas_kernels.rms_norm import Norm

HIDDEN, EPS = 100, 1e-5
WEIGHT = np.linspace(-1, 2, HIDDEN, dtype=np.float32)


def run(
    x: np.ndarray, added: np.ndarray, implementation: str, dtype: type = jnp.float32
) -> tuple[np.ndarray, np.ndarray]:
    norm = Norm(jnp.asarray(WEIGHT, dtype), EPS)
    call = jax.jit(lambda x, added: add_norm(x, added, norm, implementation=implementation))
    total, normed = call(jnp.asarray(x, dtype), jnp.asarray(added, dtype))
    return np.asarray(total), np.asarray(normed)


def rows(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(2, 3, HIDDEN)).astype(np.float32)


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_the_sum_and_its_norm_are_those_of_float64(implementation: str) -> None:
    total, normed = run(rows(0), rows(1), implementation)
    np.testing.assert_array_equal(total, rows(0) + rows(1))
    wide = total.astype(np.float64)
    expected = WEIGHT * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPS)
    np.testing.assert_allclose(normed, expected, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_the_norm_sees_the_rounded_sum() -> None:
    got, expected = (run(rows(0), rows(1), name, jnp.bfloat16) for name in ("pallas", "xla"))
    np.testing.assert_array_equal(got[0], expected[0])
    different = got[1].astype(np.float32) - expected[1].astype(np.float32)
    assert np.abs(different).max() <= 2**-7 * np.abs(expected[1].astype(np.float32)).max()


def test_a_row_knows_nothing_of_the_others() -> None:
    spoiled = rows(0)
    spoiled[0, 1] = np.nan
    for got, expected in zip(
        run(spoiled, rows(1), "pallas"), run(rows(0), rows(1), "pallas"), strict=True
    ):
        np.testing.assert_array_equal(
            np.delete(got.reshape(6, -1), 1, 0), np.delete(expected.reshape(6, -1), 1, 0)
        )
        assert np.isnan(got[0, 1]).all()


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="expected x and added of one shape"):
        run(rows(0), rows(1)[:1], "xla")
    with pytest.raises(ValueError, match="expected bfloat16 or float32 and twice the same"):
        run(rows(0), rows(1), "pallas", jnp.float16)
