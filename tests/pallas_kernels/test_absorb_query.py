import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray

from pallas_kernels import absorb_query

IMPLEMENTATIONS = ["xla", "pallas"]
Case = tuple[NDArray, NDArray, NDArray, NDArray]


def make_case(batch: int, q_len: int, heads: int, kv_lora: int, nope: int, half: int) -> Case:
    rng = np.random.default_rng(batch + kv_lora)
    angles = rng.uniform(-3, 3, (batch, q_len, half))
    return (
        rng.normal(size=(batch, q_len, heads, nope + 2 * half)).astype(np.float32),
        rng.normal(size=(heads, kv_lora, nope)).astype(np.float32),
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
    )


def run(case: Case, implementation: str) -> tuple[NDArray, NDArray]:
    out = jax.jit(lambda *a: absorb_query(*a, implementation=implementation))(*case)
    return np.asarray(out[0]), np.asarray(out[1])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("sizes", [(1, 1, 2, 16, 8, 4), (5, 4, 3, 200, 24, 6)])
def test_equals_complex_multiplication_and_float64_products(
    implementation: str, sizes: tuple[int, ...]
) -> None:
    """A pair is a complex number, its rotation a product with cos + i sin."""
    q, kernel, cos, sin = case = make_case(*sizes)
    nope = kernel.shape[-1]
    latent, rope = run(case, implementation)
    expected = np.einsum("bqhd,hcd->bqhc", q[..., :nope].astype(np.float64), kernel)
    np.testing.assert_allclose(latent, expected, atol=2e-5)
    pairs = (q[..., nope::2] + 1j * q[..., nope + 1 :: 2]) * (cos + 1j * sin)[:, :, None]
    np.testing.assert_allclose(rope[..., ::2], pairs.real, atol=1e-6)
    np.testing.assert_allclose(rope[..., 1::2], pairs.imag, atol=1e-6)


@pytest.mark.optimised
def test_a_permuted_batch_and_a_spoiled_neighbour_leave_every_rows_bits() -> None:
    q, kernel, cos, sin = case = make_case(5, 4, 3, 40, 24, 6)
    latent, rope = run(case, "pallas")
    order = np.array([3, 0, 4, 2, 1])
    moved = run((q[order], kernel, cos[order], sin[order]), "pallas")
    np.testing.assert_array_equal(moved[0], latent[order])
    np.testing.assert_array_equal(moved[1], rope[order])
    spoiled = q.copy()
    spoiled[2] = np.nan
    others = np.array([0, 1, 3, 4])
    found = run((spoiled, kernel, cos, sin), "pallas")
    np.testing.assert_array_equal(found[0][others], latent[others])
    np.testing.assert_array_equal(found[1][others], rope[others])


@pytest.mark.usefixtures("no_jaxtyping")
def test_other_dtypes_and_shapes_are_refused_with_the_reason() -> None:
    q, kernel, cos, sin = map(jnp.asarray, make_case(1, 1, 2, 16, 8, 4))
    with pytest.raises(ValueError, match="got float16 and float32"):
        absorb_query(q.astype(jnp.float16), kernel, cos, sin, implementation="pallas")
    with pytest.raises(ValueError, match=r"expected q \[b, q, heads, nope \+ rope\]"):
        absorb_query(q, kernel[:1], cos, sin)
