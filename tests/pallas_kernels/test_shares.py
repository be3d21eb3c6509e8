"""A context in parts on several devices: the partial attention of each, joined, is the whole."""

from dataclasses import replace
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import paged
import pytest
from compiling import compiled, compiled_anew
from numpy.typing import NDArray
from paged import HEAD_DIM, LATENT, NAMES, SCALE, VALUE, Case, local_parts
from sweeps import sweep

from pallas_kernels import (
    PagedKV,
    attend_share,
    gpu,
    gqa_share,
    join_shares,
    share_values,
)
from pallas_kernels.dispatch import exact_bits
from pallas_kernels.paged import mla_kernel
from pallas_kernels.paged.partial import MASS, unpack

GROUPS, HEADS, KINDS = 2, 3, ["mla", "gqa"]
each = pytest.mark.parametrize(
    ("kind", "implementation"), sweep(product(KINDS, NAMES), [*product(KINDS, ["xla", "pallas"])])
)
each_mla = pytest.mark.parametrize("implementation", sweep(NAMES, ["xla", "pallas"]))


def make_case(kind: str, lengths: list[int], q_len: int = 4, page_size: int = 16) -> Case:
    """With queries of GROUPS devices [GROUPS, batch, q_len, HEADS, dim] and, for latents, the
    kernels that each device's own heads multiply."""
    case = paged.make_case(kind, lengths, q_len, page_size, kv_heads=1)
    rng = np.random.default_rng(1)
    shape = GROUPS, len(lengths), q_len, HEADS
    queries = (rng.normal(size=(*shape, q.shape[-1])).astype(np.float32) for q in case.queries)
    values = rng.normal(size=(GROUPS, HEADS, LATENT, VALUE)).astype(np.float32)
    kernels = {"value_kernel": values} if kind == "mla" else {}
    return replace(case, queries=tuple(queries), kernels=kernels)


def attend_part(queries, pools, scales, table, positions, *, operation, scale, implementation):
    paged = PagedKV(pools, scales[: len(pools)], table, positions)
    return operation(*queries, paged, scale, implementation=implementation)


def share_of(case: Case, implementation: str, scale: float = SCALE) -> NDArray[Any]:
    """A device's part of all groups' heads: packed means and masses."""
    operation = attend_share if case.kind == "mla" else gqa_share
    call = compiled(attend_part, operation=operation, scale=scale, implementation=implementation)
    return np.asarray(call(case.queries, case.pools, case.scales, case.table, case.positions))


def join(case: Case, shares: Any, implementation: str, group: int = 0) -> NDArray[Any]:
    """Join the partial attention of a group's heads, as its own device does."""
    if case.kind == "gqa":
        return np.asarray(compiled(join_shares)(jnp.asarray(shares)))
    values = case.kernels["value_kernel"][group]
    return np.asarray(compiled(share_values, implementation=implementation)(shares, values))


def in_parts(case: Case, parts: int, implementation: str) -> NDArray[Any]:
    """Each group's answer [GROUPS, batch, q_len, HEADS, dim]."""
    devices = zip(*(local_parts(pool, case.positions, parts) for pool in case.pools), strict=True)
    shares = [
        share_of(
            replace(case, pools=tuple(pool for pool, _ in device), positions=device[0][1]),
            implementation,
        )
        for device in devices
    ]
    groups = (np.stack([share[group] for share in shares]) for group in range(GROUPS))
    return np.stack([join(case, one, implementation, g) for g, one in enumerate(groups)])


def undivided(case: Case) -> NDArray[Any]:
    """`in_parts` by one device that holds the whole context."""
    found = []
    for group in range(GROUPS):
        queries = tuple(q[group] for q in case.queries)
        kernels = {name: kernel[group] for name, kernel in case.kernels.items()}
        found.append(paged.run(replace(case, queries=queries, kernels=kernels), "reference"))
    return np.stack(found)


PARTS = [*product(["xla"], [1, 2, 4]), ("reference", 2), *product(["pallas"], [1, 2, 3, 4])]


@pytest.mark.parametrize(
    ("kind", "implementation", "parts"),
    sweep(
        [(kind, *one) for kind in KINDS for one in PARTS],
        [("mla", "xla", 4), ("mla", "pallas", 3), ("gqa", "xla", 2), ("gqa", "pallas", 4)],
    ),
)
def test_parts_of_a_context_joined_are_the_whole_context(
    kind: str, implementation: str, parts: int
) -> None:
    """Four rows go over borders of parts and pages, some devices hold nothing of the shortest
    context; what no row sees is NaN."""
    case = make_case(kind, [5, 67, 140, 700], page_size=48)
    np.testing.assert_allclose(in_parts(case, parts, implementation), undivided(case), atol=2e-5)


def test_a_context_that_is_not_cut_leaves_its_share_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Use a batch that fills the GPU; one device holds nothing of the last sequence."""
    case = make_case("mla", [700, 67, 5])
    cut, whole = in_parts(case, 2, "pallas"), undivided(case)
    monkeypatch.setattr(f"{__name__}.compiled", compiled_anew)
    monkeypatch.setattr(mla_kernel, "parts_that_fill", lambda _: 1)
    found = in_parts(case, 2, "pallas")
    np.testing.assert_allclose(found, whole, atol=2e-5)
    assert (found != cut).any()


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx950"]))
def test_bfloat16_rows_of_several_groups_fill_tiles_of_an_amd_gpu(arch: str) -> None:
    """54 rows of six queries and more; parts end in the first tile of keys, and inside of one."""
    case = make_case("mla", [22, 150], q_len=9).cast(jnp.bfloat16)
    with gpu.assume(arch):
        found = in_parts(case, 2, "pallas").astype(np.float32)
    np.testing.assert_allclose(found, undivided(case.cast(np.float32)), atol=8e-2, rtol=2e-2)


@each
def test_float8_pools_stand_for_their_numbers_times_their_scales(
    kind: str, implementation: str
) -> None:
    case = make_case(kind, [5, 67], q_len=2)
    pools = tuple(np.asarray(pool).astype(jnp.float8_e4m3fn) for pool in case.pools)
    case = replace(case, pools=pools, scales=(jnp.float32(0.75), jnp.float32(1.5)))
    np.testing.assert_allclose(in_parts(case, 2, implementation), undivided(case), atol=2e-5)


@each_mla
def test_bfloat16_rounds_means_and_no_masses(implementation: str) -> None:
    # A CPU's form rounds scaled queries, which a power of two leaves as they are.
    case, scale = make_case("mla", [9, 300]).cast(jnp.bfloat16), 0.25
    share = share_of(case, implementation, scale)
    assert share.dtype == jnp.bfloat16 and share.shape[-1] == LATENT + MASS
    exact = share_of(case.cast(np.float32), "reference", scale)
    (means, masses), (exact_means, exact_masses) = (
        unpack(jnp.asarray(one), LATENT) for one in (share, exact)
    )
    np.testing.assert_allclose(means.astype(jnp.float32), exact_means, atol=2e-2, rtol=1e-2)
    # A mass in one bfloat16 would be wrong by up to 4e-2, in two by 1e-4.
    np.testing.assert_allclose(masses, exact_masses, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "implementation", "dtype"),
    sweep(
        product(KINDS, NAMES, [jnp.float32, jnp.bfloat16]),
        [*product(KINDS, ["xla"], [jnp.float32]), *product(KINDS, ["pallas"], [jnp.bfloat16])],
    ),
)
def test_a_row_that_sees_nothing_is_zero_and_weighs_nothing(
    kind: str, implementation: str, dtype: Any
) -> None:
    case = make_case(kind, [9, 33]).cast(dtype)
    positions = case.positions.copy()
    positions[0], positions[1, 0] = -1, -1
    expected = share_of(case, implementation)
    found = share_of(replace(case, positions=positions), implementation)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found[:, 1, 1:], expected[:, 1, 1:])
    for rows in (found[:, 0], found[:, 1, 0]):
        means, masses = unpack(jnp.asarray(rows), rows.shape[-1] - MASS)
        assert (means == 0).all() and (masses == np.float32(-1e30)).all()
    assert (join(case, found, implementation)[1, 0] == 0).all()
    nothing = np.broadcast_to(found[0, 0, 0, 0], expected[0].shape)
    alone = join(case, expected[:1], implementation)
    for pair in ([expected[0], nothing], [nothing, expected[0]]):
        np.testing.assert_array_equal(join(case, np.stack(pair), implementation), alone)


@each_mla
def test_a_nan_that_is_seen_stays_one_and_reaches_no_other_sequence(implementation: str) -> None:
    case = make_case("mla", [9, 33])
    expected = in_parts(case, 2, implementation)
    case.pools[0][case.table[0, 0], 3] = np.nan
    found = in_parts(case, 2, implementation)
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_array_equal(found[:, 1], expected[:, 1])


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("kind", "implementation"), [("mla", "xla"), ("mla", "pallas"), ("gqa", "xla")]
)
def test_neither_a_neighbour_nor_the_table_changes_a_rows_bits(
    kind: str, implementation: str
) -> None:
    case = make_case(kind, [20, 200], q_len=2)
    queries = tuple(q[:, :1] for q in case.queries)
    alone = replace(case, queries=queries, table=case.table[:1, :2], positions=case.positions[:1])
    with exact_bits(True):
        expected = in_parts(case, 2, implementation)[:, :1]
        np.testing.assert_array_equal(in_parts(alone, 2, implementation), expected)


@pytest.mark.usefixtures("no_jaxtyping")
@pytest.mark.parametrize("kind", KINDS)
def test_what_does_not_fit_is_refused(kind: str) -> None:
    case = make_case(kind, [9, 33], q_len=2)
    with pytest.raises(ValueError, match="bfloat16 or float32, got float16"):
        share_of(case.cast(np.float16), "xla")
    with pytest.raises(ValueError, match="page_table"):
        share_of(replace(case, table=case.table[:1]), "xla")
    wrong = [np.repeat(pool, 2, axis=-2) if kind == "gqa" else pool[..., 1:] for pool in case.pools]
    expected = f"of one head of {HEAD_DIM}" if kind == "gqa" else "latent, then rope"
    with pytest.raises(ValueError, match=expected):
        share_of(replace(case, pools=tuple(wrong)), "xla")
    scales, tree = (None,) * len(case.pools), jnp.ones((2, 2, 2), bool)
    of_tree = PagedKV(case.pools, scales, case.table, case.positions, tree)
    operation: Any = gqa_share if kind == "gqa" else attend_share
    with pytest.raises(ValueError, match="nodes of a tree"):
        operation(*case.queries, of_tree, SCALE)
    with pytest.raises(ValueError, match=r"heads, kv_lora \+ 8"):
        share_values(jnp.zeros((2, 1, 1, HEADS, LATENT)), jnp.zeros((HEADS, LATENT, VALUE)))
