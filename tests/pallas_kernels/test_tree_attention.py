"""Both paged attentions over trees: a node sees the committed rows and its ancestors alone."""

from collections.abc import Callable
from itertools import product
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from paged import attend, scatter
from sweeps import sweep

from pallas_kernels import PagedKV, gpu, gqa_decode, mla_decode

LENGTHS = [1, 17, 125]
"""Committed slots; 125 puts a tree on both sides of a chunk of the running softmax."""
PARENTS = [[0, 0, 0, 1, 1, 4], [0, 0, 1, 2, 3, 4], [0, 0, 0, 0, 0, 0]]
NODES, PAGE_SIZE, PAGES_PER_SEQ, SCALE = 6, 16, 9, 0.3
IMPLEMENTATIONS = ["xla", "reference", "pallas"]
ROWS = {"mla": [(24,)], "gqa": [(2, 8), (2, 8)]}
"""A slot's row in each pool: latent 16 and rotated key 8, or two heads of keys and of values."""


def path(parents: list[int], node: int) -> list[int]:
    return [node] if node == 0 else [*path(parents, parents[node]), node]


def masks(first: int) -> NDArray[np.bool_]:
    """Ancestors of the nodes from `first` on."""
    found = np.zeros((len(PARENTS), NODES, NODES), bool)
    for b, parents in enumerate(PARENTS):
        for node in range(NODES):
            found[b, node, path(parents, node)] = True
    return found[:, first:]


def make_case(kind: str, first: int) -> tuple[list[NDArray], list[NDArray], NDArray, NDArray]:
    """Contexts in order, pools, table and positions; slots behind the nodes hold NaN."""
    rng = np.random.default_rng(7)
    contexts, pools, table = [], [], np.zeros(())
    for row in ROWS[kind]:
        rows = [rng.normal(size=(n + NODES, *row)).astype(np.float32) for n in LENGTHS]
        pool, table = scatter(rows, PAGE_SIZE, PAGES_PER_SEQ)
        contexts.append(rows)
        pools.append(pool)
    positions = np.repeat(np.array(LENGTHS)[:, None] - 1, NODES - first, axis=1)
    return contexts, pools, table, positions.astype(np.int32)


def queries(kind: str, rows: int) -> list[NDArray]:
    rng = np.random.default_rng(8)
    dims = (16, 8) if kind == "mla" else (8,)
    shape = (len(LENGTHS), rows, 4)
    return [rng.normal(size=(*shape, dim)).astype(np.float32) for dim in dims]


def run(kind: str, *inputs: NDArray, ancestors: NDArray, implementation: str) -> NDArray:
    operation: Callable = mla_decode if kind == "mla" else gqa_decode
    number = len(ROWS[kind])

    def call(inputs, ancestors):
        *queries, table, positions = inputs[: -2 - number] + inputs[-2:]
        paged = PagedKV(inputs[-2 - number : -2], (None,) * number, table, positions, ancestors)
        return operation(*queries, paged, SCALE, implementation=implementation)

    return np.asarray(jax.jit(call)(inputs, ancestors)).reshape(inputs[0].shape)


def oracle(kind: str, asked: list[NDArray], contexts: list[Any], first: int) -> NDArray[np.float64]:
    query = np.concatenate(asked, axis=-1)
    out = np.zeros(asked[0].shape)
    for b, j, h in np.ndindex(query.shape[:3]):
        seen = [*range(LENGTHS[b]), *(LENGTHS[b] + i for i in path(PARENTS[b], first + j))]
        if kind == "mla":
            keys = contexts[0][b][seen]
            values = keys[:, :16]
        else:
            keys, values = (context[b][seen, h // 2] for context in contexts)
        out[b, j, h] = attend(query[b, j, h], keys, values, SCALE)
    return out


@pytest.mark.parametrize(
    ("kind", "first", "implementation"),
    sweep(
        product(ROWS, [0, 4], IMPLEMENTATIONS),
        [("mla", 0, "xla"), ("gqa", 4, "xla"), ("gqa", 0, "pallas"), ("mla", 4, "pallas")],
    ),
)
def test_nodes_see_the_committed_rows_and_their_own_path(
    kind: str, first: int, implementation: str
) -> None:
    contexts, pools, table, positions = make_case(kind, first)
    asked = queries(kind, NODES - first)
    inputs = *asked, *pools, table, positions
    found = run(kind, *inputs, ancestors=masks(first), implementation=implementation)
    np.testing.assert_allclose(found, oracle(kind, asked, contexts, first), atol=5e-6)


@pytest.mark.parametrize("kind", sweep(ROWS, ["mla"]))
def test_on_amd_gpus_what_no_node_sees_is_loaded_and_ignored(kind: str) -> None:
    contexts, pools, table, positions = make_case(kind, 0)
    asked = queries(kind, NODES)
    with gpu.assume("gfx950"):
        found = run(
            kind, *asked, *pools, table, positions, ancestors=masks(0), implementation="pallas"
        )
    np.testing.assert_allclose(found, oracle(kind, asked, contexts, 0), atol=5e-6)


@pytest.mark.usefixtures("no_jaxtyping")
@pytest.mark.parametrize("kind", ROWS)
def test_a_mask_that_does_not_fit_is_refused(kind: str) -> None:
    _, pools, table, positions = make_case(kind, 0)
    inputs = *queries(kind, NODES), *pools, table, positions
    with pytest.raises(ValueError, match=r"ancestors \(3, 5, 6\)"):
        run(kind, *inputs, ancestors=masks(1), implementation="xla")
