"""Kernels that treat each row alone: add_norm, absorb_query and router_logits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled

from pallas_kernels import absorb_query, add_norm, router_logits
from pallas_kernels.rms_norm import Norm

HIDDEN, EPS = 100, 1e-5
WEIGHT = np.linspace(-1, 2, HIDDEN, dtype=np.float32)
both = pytest.mark.parametrize("implementation", ["xla", "pallas"])


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def norms(
    x: np.ndarray, added: np.ndarray, implementation: str, dtype: type = jnp.float32
) -> list[np.ndarray]:
    """The sum and its norm."""
    norm = Norm(jnp.asarray(WEIGHT, dtype), EPS)
    call = jax.jit(lambda x, added: add_norm(x, added, norm, implementation=implementation))
    return [*map(np.asarray, call(jnp.asarray(x, dtype), jnp.asarray(added, dtype)))]


X, ADDED = normal(0, 2, 3, HIDDEN), normal(1, 2, 3, HIDDEN)


@both
def test_the_sum_and_its_norm_are_those_of_float64(implementation: str) -> None:
    total, normed = norms(X, ADDED, implementation)
    np.testing.assert_array_equal(total, X + ADDED)
    wide = total.astype(np.float64)
    expected = WEIGHT * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + EPS)
    np.testing.assert_allclose(normed, expected, rtol=1e-5, atol=1e-6)


def test_in_bfloat16_the_norm_sees_the_rounded_sum() -> None:
    got, expected = (norms(X, ADDED, name, jnp.bfloat16) for name in ("pallas", "xla"))
    np.testing.assert_array_equal(got[0], expected[0])
    different = got[1].astype(np.float32) - expected[1].astype(np.float32)
    assert np.abs(different).max() <= 2**-7 * np.abs(expected[1].astype(np.float32)).max()


def test_a_normed_row_knows_nothing_of_the_others() -> None:
    spoiled = X.copy()
    spoiled[0, 1] = np.nan
    pairs = zip(norms(spoiled, ADDED, "pallas"), norms(X, ADDED, "pallas"), strict=True)
    for got, expected in (tuple(a.reshape(6, -1) for a in pair) for pair in pairs):
        np.testing.assert_array_equal(np.delete(got, 1, 0), np.delete(expected, 1, 0))
        assert np.isnan(got[1]).all()


def queries(batch: int, q_len: int, heads: int, latent: int, nope: int, half: int) -> list:
    """Queries, the kernel of their heads, and the cos and sin of their angles."""
    angles = 3 * normal(2, batch, q_len, half)
    q = normal(batch, batch, q_len, heads, nope + 2 * half)
    return [q, normal(latent, heads, latent, nope), np.cos(angles), np.sin(angles)]


def absorbed(case: list, implementation: str) -> tuple[np.ndarray, np.ndarray]:
    out = compiled(absorb_query, implementation=implementation)(*case)
    return np.asarray(out[0]), np.asarray(out[1])


@both
@pytest.mark.parametrize("sizes", [(1, 1, 2, 16, 8, 4), (5, 4, 3, 200, 24, 6)])
def test_equals_complex_multiplication_and_float64_products(
    implementation: str, sizes: tuple[int, ...]
) -> None:
    """A pair is a complex number, its rotation a product with cos + i sin."""
    q, kernel, cos, sin = case = queries(*sizes)
    nope = kernel.shape[-1]
    latent, rope = absorbed(case, implementation)
    expected = np.einsum("bqhd,hcd->bqhc", q[..., :nope].astype(np.float64), kernel)
    np.testing.assert_allclose(latent, expected, atol=2e-5)
    pairs = (q[..., nope::2] + 1j * q[..., nope + 1 :: 2]) * (cos + 1j * sin)[:, :, None]
    np.testing.assert_allclose(rope[..., ::2], pairs.real, atol=1e-6)
    np.testing.assert_allclose(rope[..., 1::2], pairs.imag, atol=1e-6)


@pytest.mark.optimised
def test_a_permuted_batch_and_a_spoiled_neighbour_leave_every_rows_bits() -> None:
    q, kernel, cos, sin = case = queries(5, 4, 3, 40, 24, 6)
    order, others = np.array([3, 0, 4, 2, 1]), np.array([0, 1, 3, 4])
    spoiled = q.copy()
    spoiled[2] = np.nan
    plain = absorbed(case, "pallas")
    moved = absorbed([q[order], kernel, cos[order], sin[order]], "pallas")
    beside = absorbed([spoiled, kernel, cos, sin], "pallas")
    for own, elsewhere, neighbour in zip(plain, moved, beside, strict=True):
        np.testing.assert_array_equal(elsewhere, own[order])
        np.testing.assert_array_equal(neighbour[others], own[others])


ROUTER = jnp.asarray(normal(0, 200, 20))


def tokens(count: int) -> jax.Array:
    return jnp.asarray(normal(count, count, 200), jnp.bfloat16)


def logits(x: jax.Array, implementation: str) -> np.ndarray:
    return np.asarray(compiled(router_logits, implementation=implementation)(x, ROUTER))


@both
@pytest.mark.parametrize("count", [1, 300])
def test_bfloat16_rows_meet_a_router_that_keeps_float32(count: int, implementation: str) -> None:
    """Against float64: a router rounded to bfloat16, or to TF32, would be a hundred times off."""
    x = tokens(count)
    exact = np.asarray(x, np.float64) @ np.asarray(ROUTER, np.float64)
    got = logits(x, implementation)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact, atol=2e-5)


@pytest.mark.parametrize("count", [40, 300])
def test_a_row_of_the_router_keeps_its_bits_wherever_it_is(count: int) -> None:
    x, order = tokens(count), np.random.default_rng(1).permutation(count)
    np.testing.assert_array_equal(logits(x[order], "pallas"), logits(x, "pallas")[order])


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="expected x and added of one shape"):
        norms(X, ADDED[:1], "xla")
    with pytest.raises(ValueError, match="expected bfloat16 or float32 and twice the same"):
        norms(X, ADDED, "pallas", jnp.float16)
    q, kernel, cos, sin = map(jnp.asarray, queries(1, 1, 2, 16, 8, 4))
    with pytest.raises(ValueError, match="got float16 and float32"):
        absorb_query(q.astype(jnp.float16), kernel, cos, sin, implementation="pallas")
    with pytest.raises(ValueError, match=r"expected q \[b, q, heads, nope \+ rope\]"):
        absorb_query(q, kernel[:1], cos, sin)
    bfloat16 = ROUTER.astype(jnp.bfloat16)
    with pytest.raises(ValueError, match="expected bfloat16 times float32, got float32 times bf"):
        router_logits(tokens(3).astype(jnp.float32), bfloat16, implementation="pallas")
    with pytest.raises(ValueError, match=r"expected x \[tokens, hidden\] and kernel"):
        router_logits(tokens(3)[:, 1:], bfloat16)
