"""Products by streams: against float64, and that no matrix of a stack is copied for them."""

from collections.abc import Callable
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import sweep

from pallas_kernels.streamed import DENSE, EXPERT, expert_matmul, rows_matmul

EXPERTS, INPUTS, OUTPUTS = 5, 512, 136
ROWS = sorted({1, DENSE.rows, DENSE.rows + 1, EXPERT.rows, EXPERT.rows + 1})


def _random(*shape: int, dtype: str = "float32") -> jax.Array:
    values = np.random.default_rng(sum(shape)).normal(size=shape)
    return jnp.asarray(values, jnp.dtype(dtype))


BOUNDS = {"float32": 2e-6, "bfloat16": 2e-2}


@pytest.mark.parametrize(
    ("rows", "inputs", "dtype"),
    sweep(
        product(ROWS, [INPUTS, INPUTS + 1], BOUNDS),
        [
            *((1, INPUTS, "bfloat16"), (EXPERT.rows, INPUTS + 1, "float32")),
            *((DENSE.rows, INPUTS, "float32"), (EXPERT.rows + 1, INPUTS, "float32")),
        ],
    ),
)
def test_products_are_those_of_float64(rows: int, inputs: int, dtype: str):
    x, stack = _random(rows, inputs, dtype=dtype), _random(EXPERTS, inputs, OUTPUTS, dtype=dtype)
    whole = np.asarray(x, np.float64) @ np.asarray(stack[3], np.float64)
    size = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(stack[3], np.float64))
    for found in (rows_matmul(x, stack[3]), expert_matmul(x, stack, jnp.int32(3))):
        assert found.dtype == x.dtype
        assert np.all(np.abs(np.asarray(found, np.float64) - whole) <= BOUNDS[dtype] * size)


@pytest.mark.optimised
@pytest.mark.parametrize(
    "multiply", [rows_matmul, lambda x, kernel: expert_matmul(x, kernel[None], jnp.int32(0))]
)
def test_a_rows_bits_do_not_depend_on_its_neighbours_or_its_place(
    multiply: Callable[[jax.Array, jax.Array], jax.Array],
):
    x, kernel = _random(EXPERT.rows, INPUTS), _random(INPUTS, OUTPUTS)
    product = jax.jit(multiply)
    together = np.asarray(product(x, kernel))
    turned = np.asarray(product(x[::-1], kernel))[::-1]
    beside_others = np.asarray(product(x.at[1:].set(7), kernel))
    np.testing.assert_array_equal(together, turned)
    np.testing.assert_array_equal(together[0], beside_others[0])
