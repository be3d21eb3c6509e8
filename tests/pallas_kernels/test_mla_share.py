"""A context on one device, and in parts on several: what each gets of it, joined again."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled, compiled_anew
from numpy.typing import NDArray
from paged import local_parts, scatter
from sweeps import sweep

from pallas_kernels import PagedKV, attend_share, gpu, mla_decode, share_values
from pallas_kernels.exact import exact_bits
from pallas_kernels.mla_decode import pallas as decode
from pallas_kernels.mla_share.layout import MASS, unpack

GROUPS, HEADS, KV_LORA, ROPE, VALUE, SCALE = 2, 3, 16, 8, 10, 0.25
LOWEST = -1e30
IMPLEMENTATIONS = sweep(["xla", "reference", "pallas"], ["xla", "pallas"])
LENGTHS = [5, 67, 140, 700]
Arrays = dict[str, Any]


def make_case(lengths: list[int] = LENGTHS, q_len: int = 4, page_size: int = 16) -> Arrays:
    """The last q_len positions of each sequence ask, with the heads of GROUPS devices; every slot
    past a length holds NaN."""
    rng = np.random.default_rng(sum(lengths))
    contexts = [rng.normal(size=(n, KV_LORA + ROPE)).astype(np.float32) for n in lengths]
    # The newest slots weigh most, so that parts differ in mass.
    contexts[-1] *= np.linspace(0.3, 2, lengths[-1], dtype=np.float32)[:, None]
    pool, table = scatter(contexts, page_size, -(-max(lengths) // page_size))
    shape = GROUPS, len(lengths), q_len, HEADS
    return {
        "q_latent": rng.normal(size=(*shape, KV_LORA)).astype(np.float32),
        "q_rope": rng.normal(size=(*shape, ROPE)).astype(np.float32),
        "pool": pool,
        "table": table,
        "positions": (np.array(lengths)[:, None] - q_len + np.arange(q_len)).astype(np.int32),
        "values": rng.normal(size=(GROUPS, HEADS, KV_LORA, VALUE)).astype(np.float32),
    }


def attend_part(q_latent, q_rope, pool, table, positions, kv_scale, *, implementation):
    paged = PagedKV((pool,), (kv_scale,), table, positions)
    return attend_share(q_latent, q_rope, paged, SCALE, implementation=implementation)


def sharing(implementation: str) -> Callable[..., NDArray[Any]]:
    """A device's share of a case."""
    call = compiled(attend_part, implementation=implementation)
    names = "q_latent", "q_rope", "pool", "table", "positions"
    return lambda case, kv_scale=None: np.asarray(call(*(case[name] for name in names), kv_scale))


def unpacked(share: NDArray[Any]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Its means and masses."""
    means, masses = unpack(jnp.asarray(share), KV_LORA)
    return np.asarray(means, np.float32), np.asarray(masses)


def joining(implementation: str) -> Callable[..., NDArray[Any]]:
    """`share_values` on NumPy's arrays."""
    call = compiled(share_values, implementation=implementation)
    return lambda *pair: np.asarray(call(*pair))


def in_parts(case: Arrays, parts: int, implementation: str, kv_scale: Any = None) -> np.ndarray:
    """Each group's values [GROUPS, batch, q_len, HEADS, VALUE], as its own device joins them."""
    share, join = sharing(implementation), joining(implementation)
    devices = local_parts(case["pool"], case["positions"], parts)
    shares = [share({**case, "pool": pool, "positions": own}, kv_scale) for pool, own in devices]
    owned = [np.stack([share[group] for share in shares]) for group in range(GROUPS)]
    return np.stack([join(*pair) for pair in zip(owned, case["values"], strict=True)])


def attend_whole(q_latent, q_rope, values, pool, table, positions, kv_scale):
    paged = PagedKV((pool,), (kv_scale,), table, positions)
    options = {"value_kernel": values, "implementation": "reference"}
    return mla_decode(q_latent, q_rope, paged, SCALE, **options)


def undivided(case: Arrays, kv_scale: Any = None) -> NDArray[np.float32]:
    """`in_parts` by one device that holds the whole context."""
    names = "pool", "table", "positions"
    whole = compiled(attend_whole)
    groups = zip(case["q_latent"], case["q_rope"], case["values"], strict=True)
    return np.stack([whole(*group, *(case[n] for n in names), kv_scale) for group in groups])


@pytest.mark.parametrize(
    ("implementation", "parts"),
    sweep(
        [("xla", 1), ("xla", 4), ("reference", 2), *(("pallas", parts) for parts in (1, 2, 3, 4))],
        [("xla", 4), ("pallas", 3)],
    ),
)
def test_parts_of_a_context_joined_are_the_whole_context(implementation: str, parts: int):
    """Four rows go over borders of parts and pages; what no row sees is NaN."""
    case = make_case(page_size=48)
    found = in_parts(case, parts, implementation)
    np.testing.assert_allclose(found, undivided(case), atol=2e-5)


def test_a_context_that_is_not_cut_leaves_its_share_at_once(monkeypatch: pytest.MonkeyPatch):
    """As a batch that fills the GPU does; of the last sequence one device holds nothing."""
    case = make_case([700, 67, 5])
    cut, whole = in_parts(case, 2, "pallas"), undivided(case)
    monkeypatch.setattr(f"{__name__}.compiled", compiled_anew)
    monkeypatch.setattr(decode, "parts_that_fill", lambda _: 1)
    found = in_parts(case, 2, "pallas")
    np.testing.assert_allclose(found, whole, atol=2e-5)
    assert (found != cut).any()


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx950"]))
def test_bfloat16_rows_of_several_groups_fill_tiles_of_an_amd_gpu(arch: str):
    """54 rows of six queries and more; parts end in the first tile of keys, and inside of one."""
    case = make_case([22, 150], q_len=9)
    for name in ("q_latent", "q_rope", "pool", "values"):
        case[name] = case[name].astype(jnp.bfloat16)
    with gpu.assume(arch):
        found = in_parts(case, 2, "pallas")
    widened = {name: np.asarray(array, np.float32) for name, array in case.items()}
    widened |= {name: case[name] for name in ("table", "positions")}
    np.testing.assert_allclose(found.astype(np.float32), undivided(widened), atol=8e-2, rtol=2e-2)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_float8_pool_stands_for_its_numbers_times_the_scale(implementation: str):
    case, factor = make_case([5, 67], q_len=2), jnp.float32(0.75)
    case["pool"] = case["pool"].astype(jnp.float8_e4m3fn)
    found = in_parts(case, 2, implementation, factor)
    np.testing.assert_allclose(found, undivided(case, factor), atol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bfloat16_rounds_means_and_no_masses(implementation: str):
    names = "q_latent", "q_rope", "pool"
    case = make_case([9, 300])
    rounded = {**case, **{name: case[name].astype(jnp.bfloat16) for name in names}}
    widened = {**case, **{name: np.asarray(rounded[name], np.float32) for name in names}}
    share = sharing(implementation)(rounded)
    assert share.dtype == jnp.bfloat16 and share.shape[-1] == KV_LORA + MASS
    means, masses = unpacked(share)
    exact_means, exact_masses = unpacked(sharing("reference")(widened))
    np.testing.assert_allclose(means, exact_means, atol=2e-2, rtol=1e-2)
    # A mass in one bfloat16 would be wrong by up to 4e-2, in two by 1e-4.
    np.testing.assert_allclose(masses, exact_masses, atol=1e-5)


@pytest.mark.parametrize(
    ("implementation", "dtype"),
    [("xla", jnp.float32), *sweep([("reference", jnp.bfloat16)], []), ("pallas", jnp.bfloat16)],
)
def test_a_row_that_sees_nothing_is_zero_and_weighs_nothing(implementation: str, dtype: Any):
    case = make_case([9, 33])
    for name in ("q_latent", "q_rope", "pool"):
        case[name] = case[name].astype(dtype)
    share, join = sharing(implementation), joining(implementation)
    expected, positions = share(case), case["positions"].copy()
    positions[0], positions[1, 0] = -1, -1
    found = share({**case, "positions": positions})
    np.testing.assert_array_equal(found[:, 1, 1:], expected[:, 1, 1:])
    for rows in (found[:, 0], found[:, 1, 0]):
        means, masses = unpacked(rows)
        assert (means == 0).all() and (masses == np.float32(LOWEST)).all()
    values = case["values"][0].astype(dtype)
    np.testing.assert_array_equal(join(found, values)[1, 0], np.zeros((HEADS, VALUE)))
    nothing = np.broadcast_to(found[0, 0, 0, 0], expected[0].shape)
    joined = join(np.stack([expected[0], nothing]), values)
    np.testing.assert_array_equal(joined, join(np.stack([nothing, expected[0]]), values))
    np.testing.assert_array_equal(joined, join(expected[:1], values))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_nan_that_is_seen_stays_one_and_reaches_no_other_sequence(implementation: str):
    case = make_case([9, 33])
    expected = in_parts(case, 2, implementation)
    case["pool"] = case["pool"].copy()
    case["pool"][case["table"][0, 0], 3] = np.nan
    found = in_parts(case, 2, implementation)
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_array_equal(found[:, 1], expected[:, 1])


@pytest.mark.optimised
@pytest.mark.parametrize("implementation", ["xla", "pallas"])
def test_neither_a_neighbour_nor_the_table_changes_a_rows_bits(implementation: str):
    case = make_case([20, 200], q_len=2)
    one = {name: case[name][:, :1] for name in ("q_latent", "q_rope")}
    alone = {**case, **one, "table": case["table"][:1, :2], "positions": case["positions"][:1]}
    with exact_bits(True):
        expected = in_parts(case, 2, implementation)[:, :1]
        np.testing.assert_array_equal(in_parts(alone, 2, implementation), expected)


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused():
    case, refused = make_case([9, 33], q_len=2), sharing("xla")
    half = {name: case[name].astype(np.float16) for name in ("q_latent", "q_rope", "pool")}
    with pytest.raises(ValueError, match="bfloat16 or float32, got float16"):
        refused({**case, **half})
    with pytest.raises(ValueError, match="latent, then rope"):
        refused({**case, "pool": case["pool"][..., :-1]})
    with pytest.raises(ValueError, match="page_table"):
        refused({**case, "table": case["table"][:1]})
    with pytest.raises(ValueError, match=r"heads, kv_lora \+ 8"):
        share_values(jnp.zeros((2, 1, 1, HEADS, KV_LORA)), case["values"][0])
    tree = jnp.ones((2, 2, 2), bool)
    paged = PagedKV((case["pool"],), (None,), case["table"], case["positions"], tree)
    with pytest.raises(ValueError, match="nodes of a tree"):
        attend_share(case["q_latent"], case["q_rope"], paged, SCALE)
