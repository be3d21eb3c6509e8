"""Products that stay in parts until something reads them: the sum is in one order, everywhere."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import sweep

from pallas_kernels import cache_heads, cache_latents, gpu, joint_matmul
from pallas_kernels.partial_sums import PartialSums, total
from pallas_kernels.rms_norm import Norm

RNG = np.random.default_rng(0)
BATCH, Q_LEN = 2, 3
PLACES = jnp.arange(BATCH * Q_LEN, dtype=jnp.int32).reshape(BATCH, Q_LEN)
IMPLEMENTATIONS = sweep(["reference", "pallas"], ["pallas"])


def parts(width: int) -> PartialSums:
    """Of a bfloat16 product; in another order they round to another sum."""
    values = RNG.normal(size=(5, BATCH, Q_LEN, width)) * 10.0 ** RNG.integers(
        -3, 4, (5, BATCH, 1, 1)
    )
    return PartialSums(jnp.asarray(values, jnp.float32), jnp.dtype("bfloat16"))


def tables(half: int) -> tuple[jax.Array, jax.Array]:
    angles = jnp.asarray(RNG.uniform(-3, 3, (BATCH, Q_LEN, half)), jnp.float32)
    return jnp.cos(angles), jnp.sin(angles)


def test_parts_of_a_product_add_up_to_it() -> None:
    """Against float64; a GPU's tiles give as many parts as there are steps of so few columns."""
    x, kernels = RNG.normal(size=(5, 1024)), [RNG.normal(size=(1024, n)) for n in (40, 33)]

    def run(*arrays: jax.Array) -> Any:
        return joint_matmul(*arrays, in_parts=True, implementation="pallas")

    with gpu.assume("gfx950"):
        found = jax.jit(run)(*(jnp.asarray(a, jnp.float32) for a in (x, *kernels)))
    for got, kernel in zip(found, kernels, strict=True):
        assert got.values.shape == (4, 5, kernel.shape[1])
        np.testing.assert_allclose(total(got), x @ kernel, rtol=1e-4, atol=1e-4)
        first = got.values[0]
        np.testing.assert_allclose(first, x[:, :256] @ kernel[:256], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_latents_and_queries_in_parts_are_cached_as_their_sums(implementation: str) -> None:
    weights = [Norm(jnp.linspace(0.5, 2, size, dtype=jnp.bfloat16), 1e-5) for size in (24, 20)]
    cos_sin, compressed, low = tables(5), parts(34), parts(20)

    def write(compressed: Any, low: Any) -> Any:
        pool, at = jnp.zeros((2, 4, 34), jnp.bfloat16), (PLACES // 4, PLACES % 4)
        options: Any = {"q_low": low, "q_norm": weights[1], "implementation": implementation}
        return cache_latents(compressed, weights[0], *cos_sin, pool, *at, **options)

    got = jax.jit(write)(compressed, low)
    expected = jax.jit(write)(total(compressed), total(low))
    jax.tree.map(np.testing.assert_array_equal, got, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_heads_in_parts_are_cached_as_their_sums(implementation: str) -> None:
    products, cos_sin = [parts(heads * 14) for heads in (4, 2, 2)], tables(7)

    def write(*products: Any) -> Any:
        pools = (jnp.zeros((2, 4, 2, 14), jnp.bfloat16),) * 2
        arrays: list[Any] = [*products, *cos_sin, *pools, PLACES // 4, PLACES % 4]
        return cache_heads(*arrays, implementation=implementation)

    got = jax.jit(write)(*products)
    expected = jax.jit(write)(*map(total, products))
    jax.tree.map(np.testing.assert_array_equal, got, expected)
