import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled

from pallas_kernels import router_logits

RNG = np.random.default_rng(0)
KERNEL = jnp.asarray(RNG.normal(size=(200, 20)), jnp.float32)


def rows(count: int) -> jax.Array:
    return jnp.asarray(RNG.normal(size=(count, 200)), jnp.bfloat16)


def run(x: jax.Array, implementation: str) -> np.ndarray:
    return np.asarray(compiled(router_logits, implementation=implementation)(x, KERNEL))


@pytest.mark.parametrize("implementation", ["xla", "pallas"])
@pytest.mark.parametrize("tokens", [1, 17, 300])
def test_bfloat16_rows_meet_a_router_that_keeps_float32(tokens: int, implementation: str) -> None:
    """Against float64: a router rounded to bfloat16, or to TF32, would be a hundred times off."""
    x = rows(tokens)
    exact = np.asarray(x, np.float64) @ np.asarray(KERNEL, np.float64)
    got = run(x, implementation)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, atol=2e-5)
    rounded = np.asarray(x, np.float64) @ np.asarray(KERNEL.astype(jnp.bfloat16), np.float64)
    assert np.abs(rounded - exact).max() > 2e-3


@pytest.mark.parametrize("tokens", [40, 300])
def test_a_row_keeps_its_bits_wherever_it_is(tokens: int) -> None:
    x, order = rows(tokens), np.random.default_rng(1).permutation(tokens)
    np.testing.assert_array_equal(run(x[order], "pallas"), run(x, "pallas")[order])


@pytest.mark.usefixtures("no_jaxtyping")
def test_products_of_one_dtype_are_the_librarys_and_others_are_refused() -> None:
    x, kernel = rows(3), KERNEL.astype(jnp.bfloat16)
    got = router_logits(x, kernel, implementation="pallas")
    expected = jnp.matmul(x, kernel, preferred_element_type=jnp.float32)
    np.testing.assert_array_equal(got, expected)
    with pytest.raises(ValueError, match="expected bfloat16 times float32, got float32 times bf"):
        router_logits(x.astype(jnp.float32), kernel, implementation="pallas")
    with pytest.raises(ValueError, match=r"expected x \[tokens, hidden\] and kernel"):
        router_logits(x[:, 1:], kernel)
