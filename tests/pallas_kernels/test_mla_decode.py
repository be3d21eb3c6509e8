"""Rounding, tiles and epilogues of single operations of paged attention."""

from dataclasses import replace
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from numpy.typing import NDArray
from paged import (
    HEADS,
    LATENT,
    NAMES,
    SCALE,
    Case,
    head_kernel,
    local_parts,
    make_case,
    oracle,
    run,
)
from sweeps import sweep
from test_quantized import random_array

from pallas_kernels import PagedKV, QuantFormat, gpu, gqa_decode, matmul, mla_prefill_part
from pallas_kernels.dispatch import exact_bits
from pallas_kernels.fp8_matmul.quantize import quantize
from pallas_kernels.paged.mla_kernel import choose_tiles
from pallas_kernels.quantized import for_gpu

IMPLEMENTATIONS = sweep(NAMES, ["xla", "pallas"])


def assert_rounded(case: Case) -> None:
    """In bfloat16 nothing is rounded but the weights and the result."""
    rounded = case.cast(jnp.bfloat16)
    found = run(rounded, "pallas").astype(np.float32)
    np.testing.assert_allclose(found, oracle(rounded.cast(np.float32)), atol=1e-2, rtol=1e-2)


def test_bfloat16_rounds_only_the_weights_and_the_result() -> None:
    assert_rounded(make_case("mla", [9, 300], 2))


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx950"]))
def test_tiles_that_wait_in_registers_are_each_taken_once(arch: str) -> None:
    """66 rows are two tiles; contexts end in the first tile of keys, between two, and in one."""
    with gpu.assume(arch):
        assert_rounded(make_case("mla", [22, 48, 150, 303], 22))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_with_a_value_kernel_each_head_multiplies_its_mean_of_latents(implementation: str) -> None:
    case = make_case("mla", [18, 600], 17)
    kernel = head_kernel(np.random.default_rng(3), "mla", 10)
    case = replace(case, kernels={"value_kernel": kernel})
    np.testing.assert_allclose(run(case, implementation), oracle(case), atol=2e-5)


def test_rows_of_a_sequence_may_be_in_any_order() -> None:
    case, order = make_case("mla", [9, 33], 3), np.array([2, 0, 1])
    queries = tuple(q[:, order] for q in case.queries)
    shuffled = replace(case, queries=queries, positions=case.positions[:, order])
    np.testing.assert_array_equal(run(shuffled, "pallas"), run(case, "pallas")[:, order])


def test_dtypes_that_a_kernel_cannot_attend_are_refused() -> None:
    case = make_case("mla", [9, 33], 3)
    with pytest.raises(ValueError, match="queries of bfloat16 or float32, got float16"):
        run(case.cast(np.float16), "pallas")
    with pytest.raises(ValueError, match="pool of float32 or float8_e4m3fn, got float16"):
        run(replace(case, pools=case.cast(np.float16).pools), "pallas")


def test_a_row_that_sees_nothing_leaves_the_others_alone() -> None:
    case = make_case("mla", [9, 33], 3)
    positions = case.positions.copy()
    positions[0], positions[1, 0] = -1, -1
    found, expected = run(replace(case, positions=positions), "pallas"), run(case, "pallas")
    np.testing.assert_array_equal(found[1, 1:], expected[1, 1:])
    assert (found[0] == 0).all() and (found[1, 0] == 0).all()


@pytest.mark.optimised
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_page_size_does_not_change_the_bits(implementation: str) -> None:
    sizes = (1, 16, 64, 128)
    smallest, *others = (run(make_case("mla", [30, 64], 2, n), implementation) for n in sizes)
    for other in others:
        np.testing.assert_array_equal(smallest, other)


@pytest.mark.parametrize("rows", [8, 16, 64, 112, 1024])
def test_exact_bits_are_cut_by_the_row_alone(rows: int) -> None:
    """The batch decides the number of parts of a context only if bits may differ."""

    def tiles_of(batch: int) -> Any:
        pool, table = jnp.zeros((2, 64, 576), jnp.bfloat16), jnp.zeros((batch, 1), jnp.int32)
        paged = PagedKV((pool,), (None,), table, jnp.zeros((batch, 1), jnp.int32))
        return choose_tiles(batch, rows, 512, jnp.bfloat16, paged)

    batches = (1, 4, 16, 48, 64, 256)
    with exact_bits(True):
        assert len(set(map(tiles_of, batches))) == 1
    assert len(set(map(tiles_of, batches))) > 1


@pytest.mark.parametrize("page_size", sweep([8, 16, 64], [64]))
def test_on_amd_gpus_the_rest_of_a_page_is_loaded_and_ignored(page_size: int) -> None:
    case = make_case("mla", [4, 13, 33, 300], 4, page_size)
    with gpu.assume("gfx950"):
        found = run(case, "pallas")
        cleared = run(replace(case, pools=(np.nan_to_num(case.pools[0]),)), "pallas")
    np.testing.assert_allclose(found, oracle(case), atol=5e-6)
    np.testing.assert_array_equal(found, cleared)


def test_parts_that_nothing_was_left_in_are_not_joined() -> None:
    """A context of one part beside one of many, in a batch that is cut into 32."""
    case = make_case("mla", [5, 700], 1, 64)
    same = np.eye(LATENT, dtype=np.float32)[None].repeat(HEADS["mla"], 0)
    case = replace(case, kernels={"value_kernel": same})
    with gpu.assume("gfx950"):
        np.testing.assert_allclose(run(case, "pallas"), oracle(case), atol=5e-6)


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx942"]))
def test_heads_for_a_float8_product_of_blocks_come_quantised(arch: str) -> None:
    """A run is a head: values and scales are those that a launch of its own makes, bit for bit, and
    their product is that of the plain heads."""
    block = QuantFormat("fp8_block", "fp8_group")
    rng = np.random.default_rng(8)
    query, pool = rng.normal(size=(2, 3, 4, 128)), rng.normal(size=(8, 16, 2, 128))
    arrays = [jnp.asarray(x, jnp.float32) for x in (query, pool, pool[::-1])]
    table, positions = np.arange(8).reshape(2, 4), np.array([[3, 4, 5], [40, 41, 42]])
    weights, _ = random_array(block, 256, 512)

    def heads(then: QuantFormat | None) -> Any:
        def call(query, k_pool, v_pool, table, positions):
            paged = PagedKV((k_pool, v_pool), (None, None), table, positions)
            return gqa_decode(query, paged, 0.1, then=then, implementation="pallas")

        return jax.jit(call)(*arrays, table, positions)

    with gpu.assume(arch):
        rows, plain = heads(block), heads(None)
        own = quantize(plain.reshape(6, -1), grouped=True)
        fitting = for_gpu(weights)
        found = matmul(rows, fitting, implementation="pallas")
        assert rows.values.dtype == gpu.current().fp8
    assert np.asarray(rows.values).tobytes() == np.asarray(own.values).tobytes()
    np.testing.assert_array_equal(rows.scale.reshape(6, -1), own.scale)
    expected = matmul(plain, weights, implementation="reference")
    np.testing.assert_allclose(found, expected, atol=1e-4 * float(np.abs(expected).max()))
    again = matmul(rows, fitting, implementation="reference")
    np.testing.assert_allclose(again, found, atol=1e-4)
    for_rows = random_array(QuantFormat("fp8_channel", "fp8_token"), 256, 512)[0]
    for implementation in ("xla", "pallas"):
        with pytest.raises(ValueError, match="expected a kernel that multiplies fp8_group"):
            matmul(rows, for_rows, implementation=implementation)


@pytest.mark.optimised
def test_where_a_chunk_begins_changes_no_bit() -> None:
    """Nor do its neighbours, nor a wider table."""
    case = make_case("chunk", [60, 40], 40)
    queries = tuple(q[:1, 7:] for q in case.queries)
    wider = np.pad(case.table[:1], ((0, 0), (0, 3)), constant_values=-5)
    alone = case.of(slice(1), queries=queries, table=wider, positions=case.positions[:1, 7:])
    np.testing.assert_array_equal(run(alone, "pallas"), run(case, "pallas")[:1, 7:])


def attend_part(queries, kernels, pools, table, positions, *, implementation):
    q_nope, q_rope = queries
    paged = PagedKV(pools, (None,), table, positions)
    options = {**kernels, "implementation": implementation}
    return mla_prefill_part(q_nope, q_rope, paged, SCALE, **options)


def run_part(case: Case, implementation: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values and masses of a part of a context."""
    call = compiled(attend_part, implementation=implementation)
    found = call(case.queries, case.kernels, case.pools, case.table, case.positions)
    return jax.tree.map(np.asarray, found)


@pytest.mark.parametrize(
    ("implementation", "parts"), sweep(product(NAMES, [1, 4]), [("pallas", 4)])
)
def test_parts_of_a_context_weighed_by_their_masses_are_the_whole(
    implementation: str, parts: int
) -> None:
    case = make_case("chunk", [67, 140], 67)
    devices = local_parts(case.pools[0], case.positions, parts)
    found = [
        run_part(replace(case, pools=(pool,), positions=own), implementation)
        for pool, own in devices
    ]
    masses = np.stack([log_mass for _, log_mass in found])
    weights = np.exp2(masses - masses.max(0))[..., None]
    joined = (np.stack([values for values, _ in found]) * weights).sum(0) / weights.sum(0)
    np.testing.assert_allclose(joined, oracle(case), atol=5e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_part_of_which_a_row_sees_nothing_is_zero_of_no_mass_and_float32(
    implementation: str,
) -> None:
    case = make_case("chunk", [20, 40], 20).cast(jnp.bfloat16)
    positions = case.positions.copy()
    positions[0], positions[1, :5] = -1, -1
    values, log_mass = run_part(replace(case, positions=positions), implementation)
    assert values.dtype == log_mass.dtype == np.float32
    np.testing.assert_array_equal(np.isneginf(log_mass), (positions < 0)[..., None].repeat(2, 2))
    assert (values[positions < 0] == 0).all() and np.isfinite(values).all()
