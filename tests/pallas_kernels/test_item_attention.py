"""Attention within items is softmax over an item's rows, whatever lies beside it."""

from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from sweeps import sweep

from pallas_kernels import item_attention

NAMES = ["xla", "reference", "pallas"]
IMPLEMENTATIONS = sweep(NAMES, ["xla", "pallas"])
HEADS, SCALE = 2, 0.3
Arrays = Sequence[NDArray[np.float32]]


def make_arrays(rows: int, dim: int) -> Arrays:
    rng = np.random.default_rng(rows)
    return [rng.normal(size=(rows, HEADS, dim)).astype(np.float32) for _ in range(3)]


def oracle(arrays: Arrays, sizes: Sequence[int]) -> NDArray[np.float64]:
    q, k, v = (np.asarray(x, np.float64) for x in arrays)
    out, start = np.zeros(q.shape), 0
    for size in sizes:
        own = slice(start, start := start + size)
        scores = np.exp(np.einsum("qhd,khd->hqk", q[own], k[own]) * SCALE)
        out[own] = np.einsum("hqk,khd->qhd", scores / scores.sum(-1, keepdims=True), v[own])
    return out


def run(arrays: Arrays, sizes: Sequence[int], implementation: str) -> NDArray[np.float32]:
    items = np.repeat(np.arange(len(sizes)), sizes)
    call = jax.jit(partial(item_attention, scale=SCALE, implementation=implementation))
    return np.asarray(call(*arrays, items))


ITEMS = [([1], 12), ([3, 61, 1, 100, 300, 2], 12), ([64, 64], 36), ([257, 255], 72)]
"""One row, items that fill no tile, tiles of one item, and items beyond a block."""


@pytest.mark.parametrize(
    ("sizes", "dim", "implementation"),
    sweep(
        [(*item, name) for item in ITEMS for name in NAMES],
        [(*ITEMS[0], "pallas"), (*ITEMS[1], "xla"), (*ITEMS[3], "pallas")],
    ),
)
def test_equals_float64_softmax_of_each_item(sizes: list[int], dim: int, implementation: str):
    arrays = make_arrays(sum(sizes), dim)
    np.testing.assert_allclose(run(arrays, sizes, implementation), oracle(arrays, sizes), atol=5e-6)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_what_lies_in_other_items_changes_nothing(implementation: str):
    """Scores of hundreds beside it: what is not seen may not even move a row's maximum."""
    sizes = [70, 90, 60]
    arrays = make_arrays(sum(sizes), 12)
    expected = run(arrays, sizes, implementation)
    louder = [x.copy() for x in arrays]
    for x in louder:
        x[:70] *= 30
        x[160:] *= 30
    np.testing.assert_array_equal(run(louder, sizes, implementation)[70:160], expected[70:160])


@pytest.mark.usefixtures("no_jaxtyping")
def test_shapes_that_do_not_fit_are_refused():
    q, k, v = map(jnp.asarray, make_arrays(8, 12))
    with pytest.raises(ValueError, match="with items"):
        item_attention(q, k, v, jnp.zeros(7, int), SCALE)
    with pytest.raises(ValueError, match="alike"):
        item_attention(q, k[:, :1], v, jnp.zeros(8, int), SCALE)
