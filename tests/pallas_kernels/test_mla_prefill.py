from collections.abc import Sequence
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from numpy.typing import NDArray
from paged import attend, local_parts, scatter
from sweeps import sweep

from pallas_kernels import PagedKV, mla_prefill, mla_prefill_part

HEADS, KV_LORA, NOPE, ROPE, VALUE, SCALE = 2, 20, 12, 6, 10, 0.3
NAMES = ["xla", "reference", "pallas"]
IMPLEMENTATIONS = sweep(NAMES, ["xla", "pallas"])
Case = Sequence[Any]


def make_case(lengths: list[int], q_len: int, page_size: int, pages_per_seq: int) -> Case:
    """The last q_len positions of each sequence ask; every slot past a length holds NaN."""
    rng = np.random.default_rng(sum(lengths))
    contexts = [rng.normal(size=(n, KV_LORA + ROPE)).astype(np.float32) for n in lengths]
    pool, table = scatter(contexts, page_size, pages_per_seq)
    positions = np.array(lengths)[:, None] - q_len + np.arange(q_len)
    shapes = (len(lengths), q_len, HEADS, NOPE), (len(lengths), q_len, HEADS, ROPE)
    kernels = (HEADS, KV_LORA, NOPE), (HEADS, KV_LORA, VALUE)
    return (
        *(rng.normal(size=shape).astype(np.float32) for shape in shapes),
        *((rng.normal(size=shape) / 5).astype(np.float32) for shape in kernels),
        pool,
        table,
        positions.astype(np.int32),
    )


def oracle(case: Case) -> NDArray[np.float64]:
    q_nope, q_rope, key_kernel, value_kernel, pool, table, positions = case
    out = np.zeros((*q_nope.shape[:3], VALUE))
    for b, j, h in np.ndindex(q_nope.shape[:3]):
        rows = pool[table[b]].reshape(-1, KV_LORA + ROPE)[: positions[b, j] + 1].astype(np.float64)
        latent, rotated = rows[:, :KV_LORA], rows[:, KV_LORA:]
        keys = np.concatenate([latent @ key_kernel[h], rotated], axis=1)
        query = np.concatenate([q_nope[b, j, h], q_rope[b, j, h]])
        out[b, j, h] = attend(query, keys, latent @ value_kernel[h], SCALE)
    return out


def attend_pool(*arrays, implementation, attention=mla_prefill, kv_scale=None, ancestors=None):
    q_nope, q_rope, keys, values, pool, table, positions = arrays
    paged = PagedKV((pool,), (kv_scale,), table, positions, ancestors)
    chosen = {"key_kernel": keys, "value_kernel": values, "implementation": implementation}
    return attention(q_nope, q_rope, paged, SCALE, **chosen)


def run(case: Case, implementation: str, **options: Any) -> NDArray[np.float32]:
    return np.asarray(compiled(attend_pool, implementation=implementation)(*case, **options))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_equals_float64_loops_and_ignores_nan_in_unwritten_slots(implementation: str):
    case = make_case([67, 140], 67, 16, 9)
    np.testing.assert_allclose(run(case, implementation), oracle(case), atol=5e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_float8_pool_stands_for_its_numbers_times_the_scale(implementation: str):
    *before, pool, table, positions = make_case([20, 40], 20, 16, 3)
    stored = jnp.asarray(pool).astype(jnp.float8_e4m3fn)
    plain = (*before, np.asarray(stored, np.float32) * 0.75, table, positions)
    case = (*before, stored, table, positions)
    found = run(case, implementation, kv_scale=jnp.float32(0.75))
    np.testing.assert_allclose(found, oracle(plain), atol=5e-6)
    with pytest.raises(ValueError, match="float8_e4m3fn needs its scale"):
        run(case, implementation)


@pytest.mark.optimised
def test_neither_neighbours_nor_the_table_nor_where_a_chunk_begins_change_the_bits():
    *arrays, pool, table, positions = make_case([60, 40], 40, 16, 4)
    expected = run((*arrays, pool, table, positions), "pallas")
    later = [array[:1, 7:] for array in arrays[:2]]
    wider = np.pad(table[:1], ((0, 0), (0, 3)), constant_values=-5)
    alone = (*later, *arrays[2:], pool, wider, positions[:1, 7:])
    np.testing.assert_array_equal(run(alone, "pallas"), expected[:1, 7:])


def run_part(case: Case, implementation: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values and masses of a part of a context."""
    options: Any = {"attention": mla_prefill_part, "implementation": implementation}
    return jax.tree.map(np.asarray, compiled(attend_pool, **options)(*case))


@pytest.mark.parametrize(
    ("implementation", "parts"), sweep(product(NAMES, [1, 4]), [("pallas", 4)])
)
def test_parts_of_a_context_weighed_by_their_masses_are_the_whole(implementation: str, parts: int):
    *arrays, pool, table, positions = case = make_case([67, 140], 67, 16, 9)
    devices = local_parts(pool, positions, parts)
    found = [run_part((*arrays, own, table, local), implementation) for own, local in devices]
    masses = np.stack([log_mass for _, log_mass in found])
    weights = np.exp2(masses - masses.max(0))[..., None]
    joined = (np.stack([values for values, _ in found]) * weights).sum(0) / weights.sum(0)
    np.testing.assert_allclose(joined, oracle(case), atol=5e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_part_of_which_a_row_sees_nothing_is_zero_of_no_mass_and_float32(implementation: str):
    *arrays, pool, table, positions = make_case([20, 40], 20, 16, 3)
    positions[0], positions[1, :5] = -1, -1
    rounded = [jnp.asarray(array, jnp.bfloat16) for array in (*arrays, pool)]
    values, log_mass = run_part((*rounded, table, positions), implementation)
    assert values.dtype == log_mass.dtype == np.float32
    np.testing.assert_array_equal(np.isneginf(log_mass), (positions < 0)[..., None].repeat(2, 2))
    assert (values[positions < 0] == 0).all() and np.isfinite(values).all()


@pytest.mark.usefixtures("no_jaxtyping")
def test_shapes_that_do_not_fit_are_refused():
    q_nope, q_rope, keys, values, pool, table, positions = case = make_case([9, 33], 2, 16, 4)
    with pytest.raises(ValueError, match="got nodes of a tree"):
        run(case, "xla", ancestors=np.ones((2, 2, 2), bool))
    with pytest.raises(ValueError, match="latent, then rope"):
        run((q_nope, q_rope, keys, values, pool[..., :-1], table, positions), "xla")
    with pytest.raises(ValueError, match="heads, kv_lora, size"):
        run((q_nope, q_rope, keys[:1], values, pool, table, positions), "xla")
    with pytest.raises(ValueError, match="page_table"):
        run((q_nope, q_rope, keys, values, pool, table[:1], positions), "xla")
