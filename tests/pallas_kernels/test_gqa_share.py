"""The context of one KV head on one device, and in parts on several: joined, they give the same."""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from numpy.typing import NDArray
from paged import local_parts, scatter
from sweeps import sweep

from pallas_kernels import PagedKV, gqa_decode, gqa_share, join_shares
from pallas_kernels.exact import exact_bits
from pallas_kernels.mla_share.layout import MASS, unpack

GROUPS, HEADS, DIM, SCALE = 2, 3, 16, 0.25
NAMES = ["xla", "reference", "pallas"]
IMPLEMENTATIONS = sweep(NAMES, ["xla", "pallas"])
Arrays = dict[str, Any]


def make_case(lengths: list[int], q_len: int = 4, page_size: int = 16) -> Arrays:
    """The last q_len positions of each sequence ask, with the heads of GROUPS devices; every slot
    past a length holds NaN."""
    rng = np.random.default_rng(sum(lengths))
    rows = [rng.normal(size=(n, 2, 1, DIM)).astype(np.float32) for n in lengths]
    # The newest slots weigh most, so that parts differ in mass.
    rows[-1] *= np.linspace(0.3, 2, lengths[-1], dtype=np.float32)[:, None, None, None]
    pages = -(-max(lengths) // page_size)
    (keys, table), (values, _) = (
        scatter([row[:, side] for row in rows], page_size, pages) for side in range(2)
    )
    return {
        "q": rng.normal(size=(GROUPS, len(lengths), q_len, HEADS, DIM)).astype(np.float32),
        "pools": (keys, values),
        "table": table,
        "positions": (np.array(lengths)[:, None] - q_len + np.arange(q_len)).astype(np.int32),
        "scales": (None, None),
    }


def attend_pools(q, *given, operation, implementation):
    return operation(q, PagedKV(*given), SCALE, implementation=implementation)


def run(operation: Any, q: Any, case: Arrays, implementation: str) -> jax.Array:
    call = compiled(attend_pools, operation=operation, implementation=implementation)
    return call(q, *(case[name] for name in ("pools", "scales", "table", "positions")))


def share_of(case: Arrays, implementation: str) -> jax.Array:
    return run(gqa_share, case["q"], case, implementation)


def in_parts(case: Arrays, parts: int, implementation: str) -> NDArray[np.float32]:
    """Each group's heads [GROUPS, batch, q_len, HEADS, DIM], as its own device joins them."""
    devices = zip(
        *(local_parts(pool, case["positions"], parts) for pool in case["pools"]), strict=True
    )
    shares = [
        share_of({**case, "pools": (keys, values), "positions": own}, implementation)
        for (keys, own), (values, _) in devices
    ]
    join = compiled(join_shares)
    return np.stack([join(jnp.stack([share[g] for share in shares])) for g in range(GROUPS)])


def undivided(case: Arrays) -> NDArray[np.float32]:
    """`in_parts` by one device that holds the whole context."""
    heads = [run(gqa_decode, q, case, "reference").reshape(q.shape) for q in case["q"]]
    return np.stack(heads)


@pytest.mark.parametrize(
    ("implementation", "parts"),
    sweep(product(NAMES, [1, 2, 4]), [("xla", 2), ("pallas", 4)]),
)
def test_parts_of_a_context_joined_are_the_whole_context(implementation: str, parts: int):
    """Four rows go over borders of parts and pages, some devices hold nothing of the shortest
    context; what no row sees is NaN."""
    case = make_case([5, 67, 140, 300])
    np.testing.assert_allclose(in_parts(case, parts, implementation), undivided(case), atol=2e-5)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_float8_pools_stand_for_their_numbers_times_their_scales(implementation: str):
    case = make_case([5, 67], q_len=2)
    case["pools"] = tuple(jnp.asarray(pool).astype(jnp.float8_e4m3fn) for pool in case["pools"])
    case["scales"] = jnp.float32(0.75), jnp.float32(1.5)
    np.testing.assert_allclose(in_parts(case, 2, implementation), undivided(case), atol=2e-5)


@pytest.mark.parametrize(
    ("implementation", "dtype"),
    sweep(
        product(NAMES, [jnp.bfloat16, jnp.float32]),
        [("xla", jnp.float32), ("pallas", jnp.bfloat16)],
    ),
)
def test_a_row_that_sees_nothing_is_zero_and_weighs_nothing(implementation: str, dtype: Any):
    case = make_case([9, 33])
    case["q"] = jnp.asarray(case["q"], dtype)
    case["pools"] = tuple(jnp.asarray(pool, dtype) for pool in case["pools"])
    case["positions"][0] = -1
    share = share_of(case, implementation)
    assert share.dtype == dtype and share.shape[-1] == DIM + MASS
    means, masses = unpack(share[:, 0], DIM)
    assert (means == 0).all() and (masses == np.float32(-1e30)).all()
    join = compiled(join_shares)
    nothing = jnp.broadcast_to(share[:1, :1], share[:1].shape)
    np.testing.assert_array_equal(
        join(jnp.concatenate([share[:1], nothing])), join(share[:1]), strict=True
    )


@pytest.mark.optimised
def test_neither_a_neighbour_nor_the_table_changes_a_rows_bits():
    case = make_case([20, 200], q_len=2)
    alone = {**case, "q": case["q"][:, :1], "table": case["table"][:1, :2]}
    alone["positions"] = case["positions"][:1]
    with exact_bits(True):
        expected = in_parts(case, 2, "xla")[:, :1]
        np.testing.assert_array_equal(in_parts(alone, 2, "xla"), expected)


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused():
    case = make_case([9, 33], q_len=2)
    with pytest.raises(ValueError, match="bfloat16 or float32, got float16"):
        share_of({**case, "q": case["q"].astype(np.float16)}, "xla")
    two_heads = tuple(np.repeat(pool, 2, axis=2) for pool in case["pools"])
    with pytest.raises(ValueError, match="of one head of 16"):
        share_of({**case, "pools": two_heads}, "xla")
    with pytest.raises(ValueError, match="page_table"):
        share_of({**case, "table": case["table"][:1]}, "xla")
    tree = jnp.ones((2, 2, 2), bool)
    paged = PagedKV(case["pools"], (None, None), case["table"], case["positions"], tree)
    with pytest.raises(ValueError, match="nodes of a tree"):
        gqa_share(case["q"], paged, SCALE)
