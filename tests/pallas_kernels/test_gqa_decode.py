from collections.abc import Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from numpy.typing import NDArray
from paged import attend, scatter
from sweeps import sweep
from test_quantized import random_array

from pallas_kernels import PagedKV, QuantFormat, gpu, gqa_decode, matmul
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.quantized import for_gpu

HEADS, HEAD_DIM, SCALE = 6, 8, 0.4
IMPLEMENTATIONS = sweep(["xla", "reference", "pallas"], ["xla", "pallas"])
PAGES = [(1, 140), (16, 9), (64, 3)]
"""Page size, pages of a sequence."""
Case = Sequence[Any]


def make_case(
    lengths: list[int], q_len: int, page_size: int, pages_per_seq: int, kv_heads: int
) -> Case:
    """The last q_len positions of each sequence ask; every slot past a length holds NaN."""
    rng = np.random.default_rng(sum(lengths))
    rows = [rng.normal(size=(n, 2, kv_heads, HEAD_DIM)).astype(np.float32) for n in lengths]
    # The newest slots weigh most, so that a running softmax has to change its peak.
    rows[-1] *= np.linspace(0.3, 2, lengths[-1], dtype=np.float32)[:, None, None, None]
    k_pool, table = scatter([row[:, 0] for row in rows], page_size, pages_per_seq)
    v_pool, _ = scatter([row[:, 1] for row in rows], page_size, pages_per_seq)
    query = rng.normal(size=(len(lengths), q_len, HEADS, HEAD_DIM)).astype(np.float32)
    positions = np.array(lengths)[:, None] - q_len + np.arange(q_len)
    return query, k_pool, v_pool, table, positions.astype(np.int32)


def oracle(case: Case) -> NDArray[np.float64]:
    query, k_pool, v_pool, table, positions = case
    shared = HEADS // k_pool.shape[2]
    out = np.zeros(query.shape)
    for b, j, h in np.ndindex(query.shape[:3]):
        keys, values = (
            pool[table[b]].reshape(-1, *pool.shape[2:])[: positions[b, j] + 1, h // shared]
            for pool in (k_pool, v_pool)
        )
        out[b, j, h] = attend(query[b, j, h], keys, values, SCALE)
    return out


def attend_pools(
    query, k_pool, v_pool, table, positions, *, implementation, k_scale=None, v_scale=None
):
    paged = PagedKV((k_pool, v_pool), (k_scale, v_scale), table, positions)
    return gqa_decode(query, paged, SCALE, implementation=implementation)


def run(case: Case, implementation: str, **options: Any) -> NDArray[np.float32]:
    found = compiled(attend_pools, implementation=implementation)(*case, **options)
    return np.asarray(found).reshape(case[0].shape)


@pytest.mark.parametrize(
    ("implementation", "pages", "kv_heads"),
    [
        *sweep(product(["xla", "reference"], PAGES, [1, 2, HEADS]), [("xla", PAGES[1], 2)]),
        *sweep(
            [("pallas", pages, heads) for pages, heads in zip(PAGES, [1, 2, HEADS], strict=True)],
            [("pallas", PAGES[1], 2)],
        ),
    ],
)
def test_equals_float64_loops_and_ignores_nan_in_unwritten_slots(
    implementation: str, pages: tuple[int, int], kv_heads: int
):
    case = make_case([3, 17, 129, 140], 3, *pages, kv_heads)
    np.testing.assert_allclose(run(case, implementation), oracle(case), atol=5e-6)


def test_contexts_of_several_parts_and_rows_of_several_tiles_are_joined():
    case = make_case([255, 256, 257, 700], 14, 16, 44, 1)
    np.testing.assert_allclose(run(case, "pallas"), oracle(case), atol=5e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float8_pools_stand_for_their_numbers_times_their_scales(implementation: str):
    query, *pools, table, positions = make_case([9, 40], 2, 16, 3, 2)
    stored = [jnp.asarray(pool).astype(jnp.float8_e4m3fn) for pool in pools]
    plain = [np.asarray(x, np.float32) * s for x, s in zip(stored, (0.75, 1.5), strict=True)]
    case = (query, *stored, table, positions)
    scales = {"k_scale": jnp.float32(0.75), "v_scale": jnp.float32(1.5)}
    expected = oracle((query, plain[0], plain[1], table, positions))
    np.testing.assert_allclose(run(case, implementation, **scales), expected, atol=5e-6)
    with pytest.raises(ValueError, match="float8_e4m3fn needs its scale"):
        run(case, implementation, k_scale=scales["k_scale"])


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_pages_past_the_last_position_may_be_any_integer(implementation: str):
    case = make_case([5, 20], 2, 4, 8, 2)
    expected = run(case, implementation)
    table = case[3].copy()
    table[0, 2:], table[1, 5:] = 2**31 - 1, -7
    np.testing.assert_array_equal(run((*case[:3], table, case[4]), implementation), expected)


@pytest.mark.optimised
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_permuted_batch_gives_the_same_bits_in_the_new_order(implementation: str):
    query, k_pool, v_pool, table, positions = case = make_case([9, 33, 64, 21, 4], 4, 16, 4, 2)
    order = np.array([3, 0, 4, 2, 1])
    permuted = (query[order], k_pool, v_pool, table[order], positions[order])
    np.testing.assert_array_equal(run(permuted, implementation), run(case, implementation)[order])


@pytest.mark.optimised
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_neither_a_longer_neighbour_nor_a_wider_table_changes_the_bits(implementation: str):
    query, k_pool, v_pool, table, positions = case = make_case([20, 200], 2, 16, 13, 2)
    expected = run(case, implementation)[:1]
    alone = (query[:1], k_pool, v_pool, table[:1, :2], positions[:1])
    np.testing.assert_array_equal(run(alone, implementation), expected)


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx942"]))
def test_heads_for_a_float8_product_of_blocks_come_quantised(arch: str):
    """A run is a head: values and scales are those that a launch of its own makes, bit for bit, and
    their product is that of the plain heads."""
    block = QuantFormat("fp8_block", "fp8_group")
    rng = np.random.default_rng(8)
    query, pool = rng.normal(size=(2, 3, 4, 128)), rng.normal(size=(8, 16, 2, 128))
    arrays = [jnp.asarray(x, jnp.float32) for x in (query, pool, pool[::-1])]
    table, positions = np.arange(8).reshape(2, 4), np.array([[3, 4, 5], [40, 41, 42]])
    weights, _ = random_array(block, 256, 512)

    def run(then: QuantFormat | None) -> Any:
        def call(query, k_pool, v_pool, table, positions):
            paged = PagedKV((k_pool, v_pool), (None, None), table, positions)
            return gqa_decode(query, paged, 0.1, then=then, implementation="pallas")

        return jax.jit(call)(*arrays, table, positions)

    with gpu.assume(arch):
        rows, plain = run(block), run(None)
        own = quantize(plain.reshape(6, -1), grouped=True)
        fitting = for_gpu(weights)
        product = matmul(rows, fitting, implementation="pallas")
        assert rows.values.dtype == gpu.current().fp8
    np.testing.assert_array_equal(bits(rows.values).reshape(6, -1), bits(own.values))
    np.testing.assert_array_equal(rows.scale.reshape(6, -1), own.scale)
    expected = matmul(plain, weights, implementation="reference")
    np.testing.assert_allclose(product, expected, atol=1e-4 * float(np.abs(expected).max()))
    again = matmul(rows, fitting, implementation="reference")
    np.testing.assert_allclose(again, product, atol=1e-4)
    for_rows = random_array(QuantFormat("fp8_channel", "fp8_token"), 256, 512)[0]
    for implementation in ("xla", "pallas"):
        with pytest.raises(ValueError, match="expected a kernel that multiplies fp8_group"):
            matmul(rows, for_rows, implementation=implementation)


def bits(values: Any) -> NDArray[np.uint8]:
    return np.asarray(values).view(np.uint8)


@pytest.mark.usefixtures("no_jaxtyping")
def test_shapes_that_do_not_fit_are_refused():
    query, k_pool, v_pool, table, positions = make_case([9, 33], 2, 16, 4, 2)
    with pytest.raises(ValueError, match="must be equal"):
        run((query, k_pool, v_pool[..., :-1], table, positions), "xla")
    with pytest.raises(ValueError, match="do not divide"):
        run((query[:, :, :5], k_pool, v_pool, table, positions), "xla")
    with pytest.raises(ValueError, match="page_table"):
        run((query, k_pool, v_pool, table, positions[:1]), "xla")
