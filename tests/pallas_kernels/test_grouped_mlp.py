"""The experts on CPU and in the GPU's kernels, interpreted: against float64 loops, and every format
against the contract; independent rows.

Sizes are multiples of no tile: 160 inputs and 96 columns against steps of 128 and tiles of 64.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from numpy.typing import NDArray
from sweeps import sweep
from test_quantized import SCHEMES, random_array

from eagle3_tools.kernel_cases.case import AMD
from pallas_kernels import GatedKernels, QuantFormat, QuantizedArray, gpu, grouped_mlp
from pallas_kernels.grouped_matmul.activations import activations
from pallas_kernels.grouped_matmul.kernel import multiply
from pallas_kernels.grouped_matmul.program import ExpertBatch, RoutedAndShared
from pallas_kernels.grouped_matmul.tile_map import tile_map
from pallas_kernels.quantized import for_gpu
from pallas_kernels.quantized.activations import int8_per_token, mxfp4_packed, mxfp4_round_trip
from pallas_kernels.tile_product import Operand
from pallas_kernels.tuning import trying

EXPERTS, TOP_K, HIDDEN, INTER = 4, 2, 160, 96
TOKENS = [1, 2, 7, 20, 64]
"""One for each number of rows that XLA's blocks may have: 1, 2, 4, 8, 16."""
W4A8, INT4, MXFP4 = (
    QuantFormat("int4_channel", "int8_token"),
    QuantFormat("int4_group"),
    QuantFormat("mxfp4", "mxfp4"),
)
PTPC, BLOCKS = QuantFormat("fp8_channel", "fp8_token"), QuantFormat("fp8_block", "fp8_group")
Inputs = list[Any]


class EveryKey(dict[tuple[str, str], dict[str, int]]):
    """Tiles on trial by operation, whatever the key of a choice is."""

    def __init__(self, **tiles: dict[str, int]):
        self.tiles = tiles

    def get(self, choice: tuple[str, str], default: Any = None) -> Any:
        return self.tiles.get(choice[0], default)


def make_inputs(
    format: QuantFormat | None, tokens: int, seed: int = 0, inter: int = INTER
) -> Inputs:
    rng = np.random.default_rng(seed)
    x = (rng.normal(size=(tokens, HIDDEN)) / 4).astype(np.float32)
    ids = np.stack([rng.permutation(EXPERTS)[:TOP_K] for _ in range(tokens)]).astype(np.int32)
    weights = rng.random((tokens, TOP_K)).astype(np.float32)
    stacks = [stack(format, *size) for size in ((inter, HIDDEN), (inter, HIDDEN), (HIDDEN, inter))]
    return [jnp.asarray(x), *stacks, jnp.asarray(ids), jnp.asarray(weights)]


def stack(format: QuantFormat | None, outputs: int, inputs: int) -> jax.Array | QuantizedArray:
    if format is not None:
        return random_array(format, outputs, inputs, stack=(EXPERTS,))[0]
    rng = np.random.default_rng(outputs)
    return jnp.asarray(rng.normal(size=(EXPERTS, inputs, outputs)) / 8, jnp.float32)


def run(inputs: Inputs, implementation: str = "pallas", **options: Any) -> np.ndarray:
    return np.asarray(compiled(grouped_mlp, implementation=implementation)(*inputs, **options))


def assert_close(got: np.ndarray, expected: np.ndarray, relative: float = 2e-5) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=relative * np.abs(expected).max())


def loops(inputs: Sequence[Any]) -> NDArray[np.float64]:
    x, gate, up, down, ids, weights = (np.asarray(array, np.float64) for array in inputs)
    out = np.zeros(x.shape)
    for token, choice in np.ndindex(ids.shape):
        expert = int(ids[token, choice])
        gated = x[token] @ gate[expert]
        inner = gated / (1 + np.exp(-gated)) * (x[token] @ up[expert])
        out[token] += weights[token, choice] * (inner @ down[expert])
    return out


@pytest.mark.parametrize("chosen", [None, [3, 0]], ids=["every expert", "two experts"])
@pytest.mark.parametrize(
    ("tokens", "implementation"),
    sweep(
        [
            *product(TOKENS, ["xla", "reference"]),
            *((tokens, "pallas") for tokens in (1, 5, 40, 400)),
        ],
        [
            *((tokens, "xla") for tokens in TOKENS),
            *((7, "reference"), (40, "pallas"), (400, "pallas")),
        ],
    ),
)
def test_equals_float64_loops(tokens: int, implementation: str, chosen: list[int] | None) -> None:
    """The kernels' tiles have up to 64 rows; 40 tokens on two experts are several tiles of each."""
    x, gate, up, down, ids, weights = make_inputs(None, tokens)
    ids = ids if chosen is None else jnp.broadcast_to(jnp.asarray(chosen), ids.shape)
    inputs = [x, gate, up, down, ids, weights]
    relative = 2e-5 if implementation == "pallas" else 2e-6
    assert_close(run(inputs, implementation), loops(inputs), relative)


@pytest.mark.parametrize(
    ("format", "arch"),
    sweep(
        [*product(SCHEMES, [None]), (MXFP4, "gfx950")],
        [(BLOCKS, None), (W4A8, None), (MXFP4, "gfx950")],
    ),
    ids=str,
)
def test_equals_the_contract(format: QuantFormat, arch: str | None) -> None:
    """gfx950 multiplies MXFP4 with its scales."""
    inputs = make_inputs(format, tokens=5)
    # A rounding to eight bits of numbers that differ in the last bit of float32 may fall to either
    # side.
    relative = 2e-5 if format.activations == "none" else 2e-2
    with gpu.assume(arch) if arch else nullcontext():
        got = run(inputs)
    assert_close(got, run(inputs, "reference"), relative)


@pytest.mark.parametrize(
    ("routed", "shared", "columns"),
    sweep(
        [
            *((None, None, INTER), (MXFP4, MXFP4, INTER), (INT4, None, INTER)),
            *((W4A8, None, INTER), (MXFP4, INT4, INTER), (None, W4A8, INTER)),
            *((None, shared, 128) for shared in (None, MXFP4, W4A8)),
        ],
        [(MXFP4, INT4, INTER), (None, None, 128)],
    ),
)
def test_a_shared_expert_joins_the_routed_ones(
    routed: QuantFormat | None,
    shared: QuantFormat | None,
    columns: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """19 tokens: two tiles of its own. One that devices cut alone has other columns."""
    inputs = make_inputs(routed, tokens=19, inter=INTER if columns == INTER else 288)
    sizes = (columns, HIDDEN), (columns, HIDDEN), (HIDDEN, columns)
    own = GatedKernels(*(stack(shared, *size)[0] for size in sizes))
    expected = run(inputs, "reference", shared=own)
    monkeypatch.delattr("pallas_kernels.grouped_matmul.pallas.swiglu")
    assert_close(run(inputs, shared=own), expected, 2e-2 if W4A8 in (routed, shared) else 2e-4)


@pytest.mark.parametrize(
    ("arch", "format"),
    sweep(product(AMD, [W4A8, PTPC]), [("gfx950", W4A8), ("gfx942", PTPC)]),
    ids=str,
)
def test_rows_quantised_in_passing_are_those_of_a_launch(arch: str, format: QuantFormat) -> None:
    """A product with 160 inputs has a whole step and a part of one; the second row has a NaN."""
    _, gate, *_, ids, _ = make_inputs(format, tokens=3)
    batch = ExpertBatch(3, TOP_K, 16, shared=False)
    x = np.random.default_rng(0).normal(size=(batch.pairs, HIDDEN)).astype(np.float32)
    rows = jnp.asarray(x).at[1, 150].set(jnp.nan).astype(jnp.bfloat16)

    def run(own: bool) -> np.ndarray:
        def product(x: jax.Array) -> jax.Array:
            given = Operand(x) if own else activations(x, format)
            order = tile_map(ids, EXPERTS, batch.rows)
            both = RoutedAndShared(given, given)
            return multiply(batch, order, both, [gate], [], x.dtype).routed.values

        with trying(EveryKey(expert_down={"columns": 32})):
            return np.asarray(jax.jit(product)(rows).astype(jnp.float32))

    with gpu.assume(arch):
        gate = for_gpu(gate)
        got, expected = run(own=True), run(own=False)
    np.testing.assert_array_equal(got, expected)
    assert np.isnan(got).all(1).sum() == 1


ON_CPU = [(None, tokens, "xla") for tokens in TOKENS]


@pytest.mark.optimised
@pytest.mark.parametrize(
    ("format", "tokens", "implementation"),
    [*ON_CPU, *sweep([(None, 33, "pallas"), (W4A8, 33, "pallas")], [(W4A8, 33, "pallas")])],
    ids=str,
)
def test_the_bits_of_a_row_do_not_depend_on_the_other_rows(
    format: QuantFormat | None, tokens: int, implementation: str
) -> None:
    """Nor on its place, nor on a NaN beside it."""
    x, gate, up, down, ids, weights = inputs = make_inputs(format, tokens)
    expected = run(inputs, implementation)
    order = np.random.default_rng(2).permutation(tokens)
    permuted = run([x[order], gate, up, down, ids[order], weights[order]], implementation)
    np.testing.assert_array_equal(permuted, expected[order])
    other = make_inputs(format, tokens, seed=1)
    for kept in {0, tokens // 2, tokens - 1}:
        theirs = other[0].at[kept - 1].set(jnp.nan), *other[4:]
        pairs = zip(theirs, (x, ids, weights), strict=True)
        rows, *choices = [array.at[kept].set(own[kept]) for array, own in pairs]
        got = run([rows, gate, up, down, *choices], implementation)
        np.testing.assert_array_equal(got[kept], expected[kept])
        assert tokens == 1 or np.isnan(got[kept - 1]).all()


@pytest.mark.parametrize("format", sweep([PTPC, BLOCKS], [BLOCKS]))
def test_gfx942_multiplies_its_own_float8(format: QuantFormat) -> None:
    x, gate, up, down, ids, weights = inputs = make_inputs(format, tokens=5)
    with gpu.assume("gfx942"):
        got = run([x, *map(for_gpu, (gate, up, down)), ids, weights])
        with pytest.raises(ValueError, match="expected weights in float8_e4m3fnuz"):
            run(inputs)
    assert_close(got, run(inputs), 2e-2)


def rows_with_ties() -> np.ndarray:
    """Halves and quarters of a largest value that leaves them as they are; the third is zeros."""
    x = np.random.default_rng(0).normal(size=(4, 160)).astype(np.float32)
    x[1] = np.round(x[1] * 4) / 4
    x[1, ::32], x[2] = [127, -6, 6, 6, 1], 0
    return x


@pytest.mark.parametrize(
    ("format", "contract"),
    [
        (W4A8, int8_per_token),
        (MXFP4, mxfp4_packed),
    ],
)
def test_rows_are_quantised_as_the_contract_does(format: QuantFormat, contract: Callable) -> None:
    with gpu.assume("gfx950"):
        quantised = jax.jit(lambda x: activations(x, format))(rows_with_ties())
    for got, expected in zip(quantised, jax.jit(contract)(rows_with_ties()), strict=True):
        np.testing.assert_array_equal(got, np.asarray(expected).reshape(got.shape))


def test_rows_in_mxfp4_are_what_they_mean_where_nothing_multiplies_it() -> None:
    with gpu.assume("gfx942"):
        got = jax.jit(lambda x: activations(x, MXFP4))(rows_with_ties())
    assert got.scale is None
    np.testing.assert_array_equal(got.values, jax.jit(mxfp4_round_trip)(rows_with_ties()))


@pytest.mark.parametrize("arch", sweep(AMD, ["gfx950"]))
def test_a_tile_quantises_its_columns_as_a_launch_of_its_own_does(arch: str) -> None:
    """Tiles of 32 columns have whole groups of MXFP4, those of 16 have not."""
    x, gate, up, *_, ids, _ = make_inputs(MXFP4, tokens=3)
    x, batch = x.at[1, 7].set(jnp.nan).astype(jnp.bfloat16), ExpertBatch(3, TOP_K, 16, shared=False)

    def inner(columns: int) -> list[bytes]:
        def run(x: jax.Array) -> Operand:
            rows, order = activations(x, MXFP4), tile_map(ids, EXPERTS, batch.rows)
            both = RoutedAndShared(rows, rows)
            then = RoutedAndShared(MXFP4, MXFP4)
            return multiply(batch, order, both, [gate, up], [], x.dtype, then=then).routed

        with trying(EveryKey(expert_gate_up={"columns": columns})):
            return [np.asarray(array).tobytes() for array in jax.tree.leaves(jax.jit(run)(x))]

    with gpu.assume(arch):
        assert inner(32) == inner(16)


@pytest.mark.usefixtures("no_jaxtyping")
def test_what_does_not_fit_is_refused() -> None:
    x, gate, up, down, *rest = make_inputs(INT4, tokens=2)
    plain = make_inputs(None, tokens=2)[2]
    with pytest.raises(ValueError, match="expected gate and up in one format"):
        run([x, gate, plain, down, *rest])
    with pytest.raises(ValueError, match="expected x in bfloat16 or float32, got float16"):
        run([x.astype(jnp.float16), gate, up, down, *rest])
    for misfit in ([x, gate, up, up, *rest], [x, gate, up, down, rest[0][:1], rest[1]]):
        with pytest.raises(ValueError, match=r"expected x \[t"):
            run(misfit)
