from collections.abc import Sequence
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from jaxtyping import TypeCheckError
from numpy.typing import NDArray
from paged import attend, scatter
from sweeps import sweep

from pallas_kernels import PagedKV, gpu, mla_decode
from pallas_kernels.exact import exact_bits

HEADS, KV_LORA, ROPE, SCALE = 3, 16, 8, 0.3
IMPLEMENTATIONS = sweep(["xla", "reference", "pallas"], ["xla", "pallas"])
PAGES = [(1, 140), (16, 9), (64, 3)]
"""Page size, pages of a sequence."""
Case = Sequence[Any]


def make_case(lengths: list[int], q_len: int, page_size: int, pages_per_seq: int) -> Case:
    """The last q_len positions of each sequence ask; every slot past a length holds NaN."""
    rng = np.random.default_rng(sum(lengths))
    contexts = [rng.normal(size=(n, KV_LORA + ROPE)).astype(np.float32) for n in lengths]
    # The newest slots weigh most, so that a running softmax has to change its peak.
    contexts[-1] *= np.linspace(0.3, 2, lengths[-1], dtype=np.float32)[:, None]
    pool, table = scatter(contexts, page_size, pages_per_seq)
    shape = (len(lengths), q_len, HEADS)
    positions = np.array(lengths)[:, None] - q_len + np.arange(q_len)
    return (
        rng.normal(size=(*shape, KV_LORA)).astype(np.float32),
        rng.normal(size=(*shape, ROPE)).astype(np.float32),
        pool,
        table,
        positions.astype(np.int32),
    )


def oracle(case: Case) -> NDArray[np.float64]:
    q_latent, q_rope, pool, table, positions = case
    out = np.zeros(q_latent.shape)
    for b, j, h in np.ndindex(q_latent.shape[:3]):
        rows = pool[table[b]].reshape(-1, KV_LORA + ROPE)[: positions[b, j] + 1]
        query = np.concatenate([q_latent[b, j, h], q_rope[b, j, h]])
        out[b, j, h] = attend(query, rows, rows[:, :KV_LORA], SCALE)
    return out


def attend_pool(
    q_latent, q_rope, pool, table, positions, *, implementation, kv_scale=None, value_kernel=None
):
    paged = PagedKV((pool,), (kv_scale,), table, positions)
    chosen = {"value_kernel": value_kernel, "implementation": implementation}
    return mla_decode(q_latent, q_rope, paged, SCALE, **chosen)


def run(case: Case, implementation: str, **options: Any) -> NDArray[np.float32]:
    return np.asarray(compiled(attend_pool, implementation=implementation)(*case, **options))


@pytest.mark.parametrize(
    ("implementation", "pages", "q_len"),
    [
        *sweep(product(["xla", "reference"], PAGES, [1, 4]), [("xla", PAGES[1], 4)]),
        *product(["pallas"], PAGES[1:2], [4]),
        *sweep([("pallas", PAGES[0], 1), ("pallas", PAGES[2], 4)], []),
    ],
)
def test_equals_float64_loops_and_ignores_nan_in_unwritten_slots(
    implementation: str, pages: tuple[int, int], q_len: int
):
    case = make_case([q_len, 17, 129, 140], q_len, *pages)
    np.testing.assert_allclose(run(case, implementation), oracle(case), atol=5e-6)


def test_contexts_of_several_parts_and_rows_of_several_tiles_are_joined():
    case = make_case([255, 256, 257, 700], 14, 16, 44)
    np.testing.assert_allclose(run(case, "pallas"), oracle(case), atol=5e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_float8_pool_stands_for_its_numbers_times_the_scale(implementation: str):
    q_latent, q_rope, pool, table, positions = make_case([9, 40], 2, 16, 3)
    stored = jnp.asarray(pool).astype(jnp.float8_e4m3fn)
    plain = (q_latent, q_rope, np.asarray(stored, np.float32) * 0.75, table, positions)
    case = (q_latent, q_rope, stored, table, positions)
    found = run(case, implementation, kv_scale=jnp.float32(0.75))
    np.testing.assert_allclose(found, oracle(plain), atol=5e-6)
    with pytest.raises(ValueError, match="float8_e4m3fn needs its scale"):
        run(case, implementation)


def test_bfloat16_rounds_only_the_weights_and_the_result():
    *floats, table, positions = make_case([9, 300], 2, 16, 19)
    rounded = [jnp.asarray(x, jnp.bfloat16) for x in floats]
    exact = oracle((*(np.asarray(x, np.float32) for x in rounded), table, positions))
    found = run((*rounded, table, positions), "pallas").astype(np.float32)
    np.testing.assert_allclose(found, exact, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx950"]))
def test_tiles_that_wait_in_registers_are_each_taken_once(arch: str):
    # 66 rows are two tiles; contexts end in the first tile of keys, between two, and inside one.
    *floats, table, positions = make_case([22, 48, 150, 303], 22, 16, 19)
    rounded = [jnp.asarray(x, jnp.bfloat16) for x in floats]
    exact = oracle((*(np.asarray(x, np.float32) for x in rounded), table, positions))
    with gpu.assume(arch):
        found = run((*rounded, table, positions), "pallas").astype(np.float32)
    np.testing.assert_allclose(found, exact, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_with_a_value_kernel_each_head_multiplies_its_mean_of_latents(implementation: str):
    case = make_case([18, 600], 17, 16, 38)
    kernel = np.random.default_rng(3).normal(size=(HEADS, KV_LORA, 10)).astype(np.float32)
    found = run(case, implementation, value_kernel=kernel)
    expected = np.einsum("bqhc,hcd->bqhd", oracle(case), kernel)
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_rows_of_a_sequence_may_be_in_any_order():
    q_latent, q_rope, pool, table, positions = case = make_case([9, 33], 3, 16, 4)
    order = np.array([2, 0, 1])
    shuffled = (q_latent[:, order], q_rope[:, order], pool, table, positions[:, order])
    np.testing.assert_array_equal(run(shuffled, "pallas"), run(case, "pallas")[:, order])


def test_what_a_kernel_cannot_attend_is_refused_with_the_reason():
    q_latent, q_rope, pool, table, positions = make_case([9, 33], 3, 16, 4)
    half = [array.astype(np.float16) for array in (q_latent, q_rope, pool)]
    with pytest.raises(ValueError, match="queries of bfloat16 or float32, got float16"):
        run((*half, table, positions), "pallas")
    with pytest.raises(ValueError, match="pool of float32 or float8_e4m3fn, got float16"):
        run((q_latent, q_rope, half[2], table, positions), "pallas")


def test_a_row_that_sees_nothing_leaves_the_others_alone():
    q_latent, q_rope, pool, table, positions = case = make_case([9, 33], 3, 16, 4)
    expected = run(case, "pallas")
    shorter = positions.copy()
    shorter[0], shorter[1, 0] = -1, -1
    found = run((q_latent, q_rope, pool, table, shorter), "pallas")
    np.testing.assert_array_equal(found[1, 1:], expected[1, 1:])
    assert (found[0] == 0).all() and (found[1, 0] == 0).all()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_pages_past_the_last_position_may_be_any_integer(implementation: str):
    case = make_case([5, 20], 2, 4, 8)
    expected = run(case, implementation)
    table = case[3].copy()
    table[0, 2:], table[1, 5:] = 2**31 - 1, -7
    np.testing.assert_array_equal(run((*case[:3], table, case[4]), implementation), expected)


@pytest.mark.optimised
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_permuted_batch_gives_the_same_bits_in_the_new_order(implementation: str):
    q_latent, q_rope, pool, table, positions = case = make_case([9, 33, 64, 21, 4], 4, 16, 4)
    order = np.array([3, 0, 4, 2, 1])
    permuted = (q_latent[order], q_rope[order], pool, table[order], positions[order])
    np.testing.assert_array_equal(run(permuted, implementation), run(case, implementation)[order])


@pytest.mark.optimised
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_neither_a_longer_neighbour_nor_a_wider_table_changes_the_bits(implementation: str):
    q_latent, q_rope, pool, table, positions = case = make_case([20, 200], 2, 16, 13)
    alone = (q_latent[:1], q_rope[:1], pool, table[:1, :2], positions[:1])
    with exact_bits(True):
        expected = run(case, implementation)[:1]
        np.testing.assert_array_equal(run(alone, implementation), expected)


@pytest.mark.optimised
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_page_size_does_not_change_the_bits(implementation: str):
    smallest, *others = (
        run(make_case([30, 64], 2, size, max(1, 64 // size)), implementation)
        for size in (1, 16, 64, 128)
    )
    for other in others:
        np.testing.assert_array_equal(smallest, other)


@pytest.mark.parametrize("page_size", sweep([8, 16, 64], [64]))
def test_on_amd_gpus_what_lies_behind_a_context_in_its_page_is_loaded_and_ignored(page_size: int):
    case = make_case([4, 13, 33, 300], 4, page_size, -(-300 // page_size))
    q_latent, q_rope, pool, table, positions = case
    with gpu.assume("gfx950"):
        found = run(case, "pallas")
        cleared = run((q_latent, q_rope, np.nan_to_num(pool), table, positions), "pallas")
    np.testing.assert_allclose(found, oracle(case), atol=5e-6)
    np.testing.assert_array_equal(found, cleared)


def test_parts_that_nothing_was_left_in_are_not_joined():
    """A context of one part beside one of many, in a batch that is cut into 32."""
    case = make_case([5, 700], 1, 64, 11)
    kernel = np.eye(KV_LORA, dtype=np.float32)[None].repeat(HEADS, 0)
    with gpu.assume("gfx950"):
        found = run(case, "pallas", value_kernel=kernel)
    np.testing.assert_allclose(found, oracle(case), atol=5e-6)


@pytest.mark.usefixtures("no_jaxtyping")
def test_shapes_that_do_not_fit_are_refused():
    q_latent, q_rope, pool, table, positions = case = make_case([9, 33], 2, 16, 4)
    with pytest.raises(ValueError, match="heads, kv_lora, value"):
        run(case, "xla", value_kernel=np.zeros((HEADS - 1, KV_LORA, 10), np.float32))
    with pytest.raises(ValueError, match="latent, then rope"):
        run((q_latent, q_rope, pool[..., :-1], table, positions), "xla")
    with pytest.raises(ValueError, match="page_table"):
        run((q_latent, q_rope, pool, table[:1], positions), "xla")


def test_equal_dimensions_are_checked_where_annotations_are():
    q_latent, q_rope, pool, table, positions = case = make_case([9, 33], 2, 16, 4)
    kernel = np.zeros((HEADS - 1, KV_LORA, 10), np.float32)
    for wrong, options in (
        ((q_latent, q_rope[:1], pool, table, positions), {}),
        ((q_latent, q_rope, pool, table[:1], positions), {}),
        (case, {"value_kernel": kernel}),
    ):
        with pytest.raises(TypeCheckError):
            run(wrong, "xla", **options)
