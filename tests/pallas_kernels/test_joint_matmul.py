"""Several products in one launch, interpreted, against the separate ones."""

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from sweeps import sweep
from test_fp8_matmul import rows
from test_quantized import random_array

from pallas_kernels import QuantFormat, gated_matmul, gpu, joint_matmul, matmul
from pallas_kernels.quantized import Kernel, for_gpu

PTPC, BLOCKS = QuantFormat("fp8_channel", "fp8_token"), QuantFormat("fp8_block", "fp8_group")
FORMATS = {"plain": None, "ptpc": PTPC, "blocks": BLOCKS}
WIDTHS = (70, 37, 33)
INPUTS = 160


def plain(outputs: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(rows(INPUTS, outputs, seed + outputs))


def kernel(format: QuantFormat | None, outputs: int, seed: int = 0) -> Kernel:
    return random_array(format, outputs, INPUTS)[0] if format else plain(outputs, seed)


def run(
    operation: Callable, x: np.ndarray | jax.Array, *kernels: Kernel, arch: str = "gfx950"
) -> list:
    with gpu.assume(arch):
        call = compiled(operation, implementation="pallas")
        fitting = [k if isinstance(k, jax.Array) else for_gpu(k) for k in kernels]
        return jax.tree.map(np.asarray, jax.tree.leaves(call(x, *fitting)))


@pytest.mark.parametrize(
    ("format", "arch"),
    sweep(product(FORMATS.values(), ["gfx950", "gfx942"]), [(None, "gfx950"), (BLOCKS, "gfx942")]),
)
def test_joint_products_are_the_separate_ones(format: QuantFormat | None, arch: str) -> None:
    x = rows(2 * 9, INPUTS).reshape(2, 9, INPUTS)
    kernels = [kernel(format, width) for width in WIDTHS]
    for got, one in zip(run(joint_matmul, x, *kernels, arch=arch), kernels, strict=True):
        expected = np.asarray(matmul(jnp.asarray(x), one))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("format", sweep(FORMATS.values(), [PTPC]))
def test_gated_products_are_silu_of_one_times_the_other(format: QuantFormat | None) -> None:
    x = rows(18, INPUTS) / 8
    gate, up = kernel(format, 70), kernel(format, 70, seed=5)
    wide = np.asarray(matmul(jnp.asarray(x), gate), np.float64)
    expected = wide / (1 + np.exp(-wide)) * np.asarray(matmul(jnp.asarray(x), up))
    (got,) = run(gated_matmul, x, gate, up)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.optimised
def test_on_cpu_they_are_the_separate_products_bit_for_bit() -> None:
    x = jnp.asarray(rows(3, INPUTS))
    gate, up = plain(70), plain(37)
    np.testing.assert_array_equal(joint_matmul(x, gate, up)[1], matmul(x, up))
    np.testing.assert_array_equal(
        gated_matmul(x, gate, gate), jax.nn.silu(matmul(x, gate)) * matmul(x, gate)
    )


@pytest.mark.optimised
@pytest.mark.parametrize("operation", [joint_matmul, gated_matmul])
def test_neither_neighbours_nor_their_order_change_a_rows_bits(operation: Callable) -> None:
    x = rows(18, INPUTS)
    kernels = plain(33), plain(33, seed=5)
    expected = run(operation, x, *kernels)
    order = np.random.default_rng(0).permutation(len(x))
    for got, own in zip(run(operation, x[order], *kernels), expected, strict=True):
        np.testing.assert_array_equal(got, own[order])
    x[1:] = np.nan
    for got, own in zip(run(operation, x, *kernels), expected, strict=True):
        np.testing.assert_array_equal(got[0], own[0])


def test_what_does_not_fit_is_refused() -> None:
    x = jnp.ones((2, INPUTS))
    with pytest.raises(ValueError, match=r"expected x \[.., in\], kernels \[in, out\]"):
        joint_matmul(x[:, 1:], plain(8), plain(8))
    with pytest.raises(ValueError, match="one shape"):
        gated_matmul(x, plain(8), plain(9))
    with pytest.raises(ValueError, match="one format"):
        run(joint_matmul, x, plain(8), kernel(BLOCKS, 8))
    with pytest.raises(ValueError, match="expected weights in float16 on gfx950, got float32"):
        run(joint_matmul, x.astype(jnp.float16), plain(8))
