"""Dense products in formats of four bits, interpreted, against the contract."""

from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import sweep

from pallas_kernels import QuantFormat, QuantizedArray, gated_matmul, gpu, joint_matmul, matmul
from pallas_kernels.partial_sums import total
from pallas_kernels.rms_norm import Norm

FORMATS = [
    QuantFormat("mxfp4", "mxfp4"),
    QuantFormat("mxfp4"),
    QuantFormat("int4_group"),
    QuantFormat("int4_channel", "int8_token"),
]
INPUTS, OUTPUTS, ROWS = 96, 40, 5
X = jnp.asarray(np.random.default_rng(0).normal(size=(1, ROWS, INPUTS)), jnp.float32)


def weights(format: QuantFormat, seed: int) -> QuantizedArray:
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 256, (OUTPUTS, INPUTS // 2), dtype=np.uint8)
    shape = format.scale_shape(OUTPUTS, INPUTS)
    if format.weights == "mxfp4":
        scale = rng.integers(120, 128, shape, dtype=np.uint8)
    else:
        scale = rng.uniform(0.01, 0.1, shape).astype(np.float32)
    array = jnp.asarray(scale)
    if format.weights == "int4_group":
        array = array.astype(jnp.bfloat16)
    return QuantizedArray(jnp.asarray(values), array, format)


@pytest.mark.parametrize(
    ("format", "arch"),
    sweep(
        product(FORMATS, ["gfx950", "gfx942"]),
        [(FORMATS[0], "gfx950"), (FORMATS[3], "gfx942")],
    ),
)
def test_products_are_those_of_the_contract(format: QuantFormat, arch: str) -> None:
    """Single, side by side, and gated behind a norm; rows that fill no tile."""
    one, two = weights(format, 1), weights(format, 2)
    norm = Norm(jnp.linspace(0.5, 2, INPUTS), 1e-5)

    def run(implementation: str) -> list[jax.Array]:
        single = matmul(X, one, implementation=implementation)
        both = map(total, joint_matmul(X, one, two, implementation=implementation))
        gated = gated_matmul(X, one, two, norm=norm, implementation=implementation)
        return [single, *both, gated]

    expected = jax.jit(lambda: run("reference"))()
    with gpu.assume(arch):
        found = jax.jit(lambda: run("pallas"))()
    for ours, theirs in zip(found, expected, strict=True):
        scale = float(np.abs(theirs).max())
        np.testing.assert_allclose(ours, theirs, atol=3e-5 * scale)


@pytest.mark.optimised
def test_a_spoiled_row_and_the_order_of_rows_change_no_other_row() -> None:
    kernel = weights(FORMATS[0], 1)
    plain = np.asarray(matmul(X, kernel, implementation="pallas"))
    spoiled = X.at[0, 2].set(jnp.nan)
    found = np.asarray(matmul(spoiled, kernel, implementation="pallas"))
    others = np.array([0, 1, 3, 4])
    np.testing.assert_array_equal(found[0, others], plain[0, others])
    order = np.array([3, 0, 4, 2, 1])
    moved = np.asarray(matmul(X[:, order], kernel, implementation="pallas"))
    np.testing.assert_array_equal(moved, plain[:, order])


@pytest.mark.parametrize(
    ("inputs", "wanted"),
    [
        (36, "int4_channel in whole words, 131072 inputs at most, got 36"),
        (2**17 + 8, "int4_channel in whole words, 131072 inputs at most, got 131080"),
    ],
)
def test_int4_channels_that_a_word_or_an_int32_has_no_room_for_are_refused(
    inputs: int, wanted: str
) -> None:
    format = QuantFormat("int4_channel", "int8_token")
    values = jnp.zeros((8, inputs // 2), jnp.uint8)
    array = QuantizedArray(values, jnp.ones(8, jnp.float32), format)
    with pytest.raises(ValueError, match=wanted):
        matmul(jnp.ones((2, inputs)), array, implementation="pallas")
    with pytest.raises(ValueError, match=wanted):
        gated_matmul(jnp.ones((2, inputs)), array, array, implementation="pallas")
