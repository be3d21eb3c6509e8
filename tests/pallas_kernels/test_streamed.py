"""Products by streams: against float64, and that no matrix of a stack is copied for them."""

from collections.abc import Callable
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sweeps import sweep

from pallas_kernels.streamed import (
    BFLOAT16,
    FLOAT32,
    expert_matmul,
    rows_matmul,
    stream_expert,
    stream_matrix,
)

EXPERTS, INPUTS, OUTPUTS = 5, 512, 136
MOST_ROWS = max(map(len, (*FLOAT32, *BFLOAT16)))
"""Most rows that are multiplied as streams."""


def _random(*shape: int, dtype: str = "float32") -> jax.Array:
    values = np.random.default_rng(sum(shape)).normal(size=shape)
    return jnp.asarray(values, jnp.dtype(dtype))


BOUNDS = {"float32": 2e-6, "bfloat16": 2e-2}
DTYPES = [("float32", "float32"), ("float32", "bfloat16"), ("bfloat16", "bfloat16")]
"""Of rows and of kernels."""


@pytest.mark.parametrize(
    ("rows", "inputs", "dtypes"),
    sweep(
        product([1, 2, MOST_ROWS, MOST_ROWS + 1], [INPUTS, INPUTS + 1], DTYPES),
        [
            *((1, INPUTS, DTYPES[2]), (MOST_ROWS, INPUTS + 1, DTYPES[0])),
            *((MOST_ROWS + 1, INPUTS, DTYPES[0]), (MOST_ROWS + 1, INPUTS, DTYPES[1])),
        ],
    ),
)
def test_products_are_those_of_float64(rows: int, inputs: int, dtypes: tuple[str, str]):
    x = _random(rows, inputs, dtype=dtypes[0])
    stack = _random(EXPERTS, inputs, OUTPUTS, dtype=dtypes[1])
    whole = np.asarray(x, np.float64) @ np.asarray(stack[3], np.float64)
    size = np.abs(np.asarray(x, np.float64)) @ np.abs(np.asarray(stack[3], np.float64))
    for found in (rows_matmul(x, stack[3]), expert_matmul(x, stack, jnp.int32(3))):
        assert found.dtype == x.dtype
        assert np.all(np.abs(np.asarray(found, np.float64) - whole) <= BOUNDS[dtypes[0]] * size)


@pytest.mark.optimised
@pytest.mark.parametrize(
    "multiply", [rows_matmul, lambda x, kernel: expert_matmul(x, kernel[None], jnp.int32(0))]
)
def test_a_rows_bits_do_not_depend_on_its_neighbours_or_its_place(
    multiply: Callable[[jax.Array, jax.Array], jax.Array],
):
    x, kernel = _random(MOST_ROWS, INPUTS), _random(INPUTS, OUTPUTS)
    product = jax.jit(multiply)
    together = np.asarray(product(x, kernel))
    turned = np.asarray(product(x[::-1], kernel))[::-1]
    beside_others = np.asarray(product(x.at[1:].set(7), kernel))
    np.testing.assert_array_equal(together, turned)
    np.testing.assert_array_equal(together[0], beside_others[0])


@pytest.mark.optimised
def test_streams_of_a_bfloat16_kernel_have_the_bits_of_its_float32_copy():
    x, stack = _random(MOST_ROWS, INPUTS), _random(EXPERTS, INPUTS, OUTPUTS, dtype="bfloat16")
    of_expert = partial(stream_expert, expert=jnp.int32(3))
    for multiply, kernel in ((stream_matrix, stack[3]), (of_expert, stack)):
        found, expected = (jax.jit(multiply)(x, k) for k in (kernel, kernel.astype(jnp.float32)))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.optimised
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("rows", [1, MOST_ROWS + 1])
def test_a_loop_over_experts_copies_at_most_one_matrix(rows: int, dtype: str):
    x, stack = _random(rows, INPUTS), _random(EXPERTS, INPUTS, OUTPUTS, dtype=dtype)

    def run(x: jax.Array, stack: jax.Array, count: jax.Array) -> jax.Array:
        def add(expert: jax.Array, total: jax.Array) -> jax.Array:
            return total + expert_matmul(x, stack, expert)

        return jax.lax.fori_loop(0, count, add, jnp.zeros((rows, OUTPUTS)))

    memory = jax.jit(run).lower(x, stack, EXPERTS).compile().memory_analysis()
    assert memory is not None
    assert memory.temp_size_in_bytes < 1.5 * 4 * INPUTS * OUTPUTS
