from collections.abc import Callable
from itertools import product

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from sweeps import sweep

from pallas_kernels import grouped_mlp

EXPERTS, TOP_K, HIDDEN, INTER = 8, 3, 96, 64
Case = tuple[NDArray, ...]
# One for each number of rows that XLA's blocks may have: 1, 2, 4, 8, 16.
TOKENS = [1, 2, 7, 33, 64]


def make_case(tokens: int, seed: int = 0) -> Case:
    rng = np.random.default_rng(seed)
    ids = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)])
    return (
        rng.normal(size=(tokens, HIDDEN)).astype(np.float32),
        (rng.normal(size=(EXPERTS, HIDDEN, INTER)) / 10).astype(np.float32),
        (rng.normal(size=(EXPERTS, HIDDEN, INTER)) / 10).astype(np.float32),
        (rng.normal(size=(EXPERTS, INTER, HIDDEN)) / 8).astype(np.float32),
        ids.astype(np.int32),
        rng.random((tokens, TOP_K)).astype(np.float32),
    )


def oracle(case: Case) -> NDArray[np.float64]:
    x, gate, up, down, ids, weights = (array.astype(np.float64) for array in case)
    out = np.zeros(x.shape)
    for token, choice in np.ndindex(ids.shape):
        expert = int(ids[token, choice])
        gated = x[token] @ gate[expert]
        inner = gated / (1 + np.exp(-gated)) * (x[token] @ up[expert])
        out[token] += weights[token, choice] * (inner @ down[expert])
    return out


def run(case: Case, implementation: str = "xla") -> NDArray[np.float32]:
    call: Callable = jax.jit(grouped_mlp, static_argnames="implementation")
    return np.asarray(call(*case, implementation=implementation))


@pytest.mark.parametrize("spread", [True, False], ids=["every expert", "three experts"])
@pytest.mark.parametrize(
    ("tokens", "implementation"),
    sweep(product(TOKENS, ["xla", "reference"]), [*((n, "xla") for n in TOKENS), (7, "reference")]),
)
def test_equals_float64_loops(tokens: int, implementation: str, spread: bool):
    *arrays, ids, weights = make_case(tokens)
    chosen = ids if spread else np.broadcast_to(np.array([5, 0, 7], np.int32), ids.shape)
    case = (*arrays, chosen, weights)
    np.testing.assert_allclose(run(case, implementation), oracle(case), atol=3e-6)


@pytest.mark.optimised
@pytest.mark.parametrize("tokens", TOKENS)
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(tokens: int):
    """Nor on its place, nor on a NaN beside it."""
    x, gate, up, down, ids, weights = case = make_case(tokens)
    other = make_case(tokens, seed=1)
    expected = run(case)
    for kept in {0, tokens // 2, tokens - 1}:
        mixed = [array.copy() for array in (other[0], other[4], other[5])]
        mixed[0][kept - 1] = np.nan
        for array, own in zip(mixed, (x, ids, weights), strict=True):
            array[kept] = own[kept]
        result = run((mixed[0], gate, up, down, mixed[1], mixed[2]))
        np.testing.assert_array_equal(result[kept], expected[kept])
        assert tokens == 1 or np.isnan(result[kept - 1]).all()
    order = np.random.default_rng(2).permutation(tokens)
    permuted = run((x[order], gate, up, down, ids[order], weights[order]))
    np.testing.assert_array_equal(permuted, expected[order])


@pytest.mark.usefixtures("no_jaxtyping")
def test_shapes_that_do_not_fit_are_refused():
    x, gate, up, down, ids, weights = make_case(4)
    with pytest.raises(ValueError, match="expected x"):
        run((x, gate, up, np.swapaxes(down, 1, 2), ids, weights))
    with pytest.raises(ValueError, match="expected x"):
        run((x, gate, up, down, ids[:3], weights))
