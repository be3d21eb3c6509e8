"""Latent and grouped-query attention through pages, in every implementation, against float64."""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from paged import HEADS, NAMES, Case, make_case, oracle, run
from sweeps import sweep

from pallas_kernels import gpu
from pallas_kernels.dispatch import exact_bits

KINDS, DECODES = ["mla", "gqa", "chunk"], ["mla", "gqa"]
PAGES = [(1, 140, 1), (16, 9, 2), (64, 3, 6)]
"""Page size, pages of a sequence, and heads of keys where queries are grouped."""


def each(kinds: list[str]) -> Any:
    """Every implementation of the operations; those of the reference are long."""
    kept = [*product(kinds, ["xla", "pallas"])]
    return pytest.mark.parametrize(("kind", "implementation"), sweep(product(kinds, NAMES), kept))


@pytest.mark.parametrize(
    ("kind", "implementation", "pages"),
    sweep(product(KINDS, NAMES, PAGES), [*product(KINDS, ["xla", "pallas"], PAGES[1:2])]),
)
def test_equals_float64_loops_and_ignores_nan_in_unwritten_slots(
    kind: str, implementation: str, pages: tuple[int, int, int]
) -> None:
    lengths, q_len = ([67, 140], 67) if kind == "chunk" else ([4, 17, 129, 140], 4)
    case = make_case(kind, lengths, q_len, *pages)
    np.testing.assert_allclose(run(case, implementation), oracle(case), atol=5e-6)


@pytest.mark.parametrize("kind", DECODES)
def test_contexts_of_several_parts_and_rows_of_several_tiles_are_joined(kind: str) -> None:
    case = make_case(kind, [255, 256, 257, 700], 14, kv_heads=1)
    np.testing.assert_allclose(run(case, "pallas"), oracle(case), atol=5e-6)


@each(KINDS)
def test_float8_pools_stand_for_their_numbers_times_their_scales(
    kind: str, implementation: str
) -> None:
    case = make_case(kind, [20, 40], 20 if kind == "chunk" else 2, pages=3)
    factors = (0.75, 1.5)[: len(case.pools)]
    stored = tuple(jnp.asarray(pool).astype(jnp.float8_e4m3fn) for pool in case.pools)
    plain = [np.asarray(x, np.float32) * f for x, f in zip(stored, factors, strict=True)]
    packed = replace(case, pools=stored, scales=tuple(map(jnp.float32, factors)))
    expected = oracle(replace(case, pools=tuple(plain)))
    np.testing.assert_allclose(run(packed, implementation), expected, atol=5e-6)
    with pytest.raises(ValueError, match="float8_e4m3fn needs its scale"):
        run(replace(packed, scales=(None, packed.scales[-1])), implementation)


@each(DECODES)
def test_pages_past_the_last_position_may_be_any_integer(kind: str, implementation: str) -> None:
    case = make_case(kind, [5, 20], 2, 4, 8)
    table = case.table.copy()
    table[0, 2:], table[1, 5:] = 2**31 - 1, -7
    found = run(replace(case, table=table), implementation)
    np.testing.assert_array_equal(found, run(case, implementation))


@pytest.mark.optimised
@each(DECODES)
def test_a_permuted_batch_gives_the_same_bits_in_the_new_order(
    kind: str, implementation: str
) -> None:
    case, order = make_case(kind, [9, 33, 64, 21, 4], 4), np.array([3, 0, 4, 2, 1])
    found = run(case.of(order), implementation)
    np.testing.assert_array_equal(found, run(case, implementation)[order])


@pytest.mark.optimised
@pytest.mark.parametrize(("kind", "implementation"), [*product(DECODES, ["xla", "pallas"])])
def test_neither_a_longer_neighbour_nor_a_wider_table_changes_the_bits(
    kind: str, implementation: str
) -> None:
    case = make_case(kind, [20, 200], 2)
    alone = case.of(slice(1), table=case.table[:1, :2])
    with exact_bits(kind == "mla"):
        expected = run(case, implementation)[:1]
        np.testing.assert_array_equal(run(alone, implementation), expected)


LENGTHS = [1, 17, 125]
"""Committed slots; 125 puts a tree on both sides of a chunk of the running softmax."""
PARENTS = [[0, 0, 0, 1, 1, 4], [0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 0]]
NODES = 6


def path(parents: list[int], node: int) -> list[int]:
    return [node] if node == 0 else [*path(parents, parents[node]), node]


def tree_case(kind: str, first: int) -> tuple[Case, NDArray[np.float64]]:
    """Nodes from `first` on ask; slots behind the nodes hold NaN. Also the float64 answer."""
    masks = np.zeros((len(PARENTS), NODES, NODES), bool)
    for b, parents in enumerate(PARENTS):
        for node in range(NODES):
            masks[b, node, path(parents, node)] = True
    case = make_case(kind, [n + NODES for n in LENGTHS], NODES - first)
    positions = np.repeat(np.array(LENGTHS, np.int32)[:, None] - 1, NODES - first, axis=1)
    case = replace(case, positions=positions, ancestors=masks[:, first:])

    def seen(b: int, j: int) -> list[int]:
        own = path(PARENTS[b], first + j)
        return [*range(LENGTHS[b]), *(LENGTHS[b] + node for node in own)]

    return case, oracle(case, seen)


@pytest.mark.parametrize(
    ("kind", "first", "implementation"),
    sweep(
        product(DECODES, [0, 4], NAMES),
        [("mla", 0, "xla"), ("gqa", 4, "xla"), ("gqa", 0, "pallas"), ("mla", 4, "pallas")],
    ),
)
def test_nodes_of_a_tree_see_the_committed_rows_and_their_own_path(
    kind: str, first: int, implementation: str
) -> None:
    case, expected = tree_case(kind, first)
    np.testing.assert_allclose(run(case, implementation), expected, atol=5e-6)


@pytest.mark.parametrize("kind", sweep(DECODES, ["mla"]))
def test_on_amd_gpus_what_no_node_sees_is_loaded_and_ignored(kind: str) -> None:
    case, expected = tree_case(kind, 0)
    with gpu.assume("gfx950"):
        np.testing.assert_allclose(run(case, "pallas"), expected, atol=5e-6)


def narrower(case: Case) -> Case:
    return replace(case, pools=(*case.pools[:-1], case.pools[-1][..., :-1]))


def one_table(case: Case) -> Case:
    return replace(case, table=case.table[:1])


def other_kernel(name: str) -> Callable[[Case], Case]:
    shape = (HEADS["mla"] + 1, 16, 10)
    return lambda case: replace(case, kernels={**case.kernels, name: np.zeros(shape, np.float32)})


def odd_heads(case: Case) -> Case:
    return replace(case, queries=(case.queries[0][:, :, :5],))


def nodes(count: int) -> Callable[[Case], Case]:
    return lambda case: replace(case, ancestors=np.ones((2, count, 3), bool))


@pytest.mark.usefixtures("no_jaxtyping")
@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("mla", other_kernel("value_kernel"), "heads, kv_lora, value"),
        ("mla", narrower, "latent, then rope"),
        ("mla", one_table, "page_table"),
        ("mla", nodes(1), r"ancestors \(2, 1, 3\)"),
        ("gqa", narrower, "must be equal"),
        ("gqa", odd_heads, "do not divide"),
        ("gqa", one_table, "page_table"),
        ("gqa", nodes(1), r"ancestors \(2, 1, 3\)"),
        ("chunk", nodes(2), "got nodes of a tree"),
        ("chunk", narrower, "latent, then rope"),
        ("chunk", other_kernel("key_kernel"), "heads, kv_lora, size"),
        ("chunk", one_table, "page_table"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(
    kind: str, change: Callable[[Case], Case], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        run(change(make_case(kind, [9, 33], 2, pages=4)), "xla")
