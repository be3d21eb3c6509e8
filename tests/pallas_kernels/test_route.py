"""The router's kernel, interpreted, against the contract and against plain loops."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled, compiled_anew
from sweeps import sweep

from pallas_kernels import QuantFormat, gpu, grouped_mlp
from pallas_kernels.grouped_matmul.activations import activations
from pallas_kernels.grouped_matmul.tile_map import TileMap, tile_map
from pallas_kernels.route import Held, RouterOptions, Routes, route
from pallas_kernels.route.one_program import fits

TOP_K = 4
OPTIONS = RouterOptions(TOP_K, normalise=True, scaling=2.5)
PTPC, MXFP4 = QuantFormat("fp8_channel", "fp8_token"), QuantFormat("mxfp4", "mxfp4")
ROWS = jnp.asarray(np.random.default_rng(4).normal(size=(7, 160)), jnp.bfloat16)


def logits(tokens: int, experts: int, seed: int = 0) -> tuple[jax.Array, jax.Array]:
    """Scores from a coarse grid, so that many are equal."""
    rng = np.random.default_rng(seed)
    coarse = np.round(rng.normal(size=(tokens, experts)), 1).astype(np.float32)
    return jnp.asarray(coarse), jnp.asarray(np.round(rng.normal(size=experts), 1) / 8, jnp.float32)


def run(
    implementation: str, *arrays: jax.Array, options: RouterOptions = OPTIONS, **others: Any
) -> Routes:
    call = compiled_anew if others else compiled
    found = call(route, options=options, implementation=implementation, **others)(*arrays)
    return jax.tree.map(np.asarray, found)


def assert_same(got: Routes, expected: Routes) -> None:
    np.testing.assert_array_equal(got.expert_ids, expected.expert_ids)
    np.testing.assert_allclose(got.weights, expected.weights, rtol=1e-6)
    assert in_use(got.tiles) == in_use(expected.tiles)


def in_use(tiles: TileMap | None) -> list[list[int]]:
    """The map without the rest past the tiles and pairs in use."""
    assert tiles is not None
    used = int(tiles.used[0])
    pairs = sum(tiles.rows[:used].tolist())
    return [array[:used].tolist() for array in tiles[1:4]] + [tiles.order[:pairs].tolist()]


SIZES = [(1, 24), (7, 24), (16, 200), (17, 70), (64, 6), (65, 24), (256, 5), (1024, 7)]


@pytest.mark.parametrize(("tokens", "experts"), sweep(SIZES, [(7, 24), (17, 70), (1024, 7)]))
def test_equals_the_contract(tokens: int, experts: int) -> None:
    arrays = logits(tokens, experts)
    got, expected = run("pallas", *arrays), run("reference", *arrays)
    assert_same(got, expected)


@pytest.mark.parametrize("tokens", [7, 128])
def test_nan_in_a_row_stays_in_that_row_and_its_experts_exist(tokens: int) -> None:
    scores, bias = logits(tokens, 24)
    got, expected = run("pallas", scores.at[2].set(jnp.nan), bias), run("pallas", scores, bias)
    others = np.arange(tokens) != 2
    np.testing.assert_array_equal(got.weights[others], expected.weights[others])
    np.testing.assert_array_equal(got.expert_ids[others], expected.expert_ids[others])
    assert got.expert_ids[2].tolist() == [0, 1, 2, 3] and np.isnan(got.weights[2]).all()
    assert got.tiles is not None and sorted(got.tiles.order) == list(range(tokens * TOP_K))


def test_experts_that_nobody_chose_have_no_tile() -> None:
    scores, bias = logits(128, 24)
    arrays = scores, bias.at[jnp.array([0, 9, 10, 23])].set(-9)
    got, expected = run("pallas", *arrays), run("reference", *arrays)
    assert_same(got, expected)
    assert not {0, 9, 10, 23} & set(in_use(got.tiles)[0])


@pytest.mark.parametrize("tokens", sweep([64, 448], [448]))
def test_a_row_keeps_its_bits_wherever_it_is(tokens: int) -> None:
    scores, bias = logits(tokens, 6)
    order = np.random.default_rng(1).permutation(tokens)
    got, expected = run("pallas", scores[order], bias), run("pallas", scores, bias)
    np.testing.assert_array_equal(got.expert_ids, expected.expert_ids[order])
    np.testing.assert_array_equal(got.weights, expected.weights[order])


@pytest.mark.parametrize(("tokens", "first"), sweep([(7, 8), (65, 0), (65, 16)], [(65, 16)]))
def test_a_device_maps_the_experts_that_it_has(tokens: int, first: int) -> None:
    held = Held(jnp.array([first], jnp.int32), 8)
    got, expected = (run(name, *logits(tokens, 24), held=held) for name in ("pallas", "reference"))
    assert_same(got, expected)
    everyone = run("xla", *logits(tokens, 24)).expert_ids - first
    np.testing.assert_array_equal(got.expert_ids, everyone)
    ids = everyone[(everyone >= 0) & (everyone < 8)]
    assert sum(in_use(got.tiles)[2]) == ids.size


def test_any_number_of_choices_runs() -> None:
    assert not fits(7, 24, 3) and fits(16, 512, 8) and not fits(17, 24, TOP_K)
    options = replace(OPTIONS, top_k=3)
    got, expected = (run(name, *logits(7, 24), options=options) for name in ("pallas", "reference"))
    assert_same(got, expected)


@pytest.mark.parametrize(("tokens", "rows"), [(1, 16), (40, 16), (40, 4)])
def test_the_map_is_that_of_plain_loops(tokens: int, rows: int) -> None:
    ids = np.array([np.random.default_rng(t).permutation(9)[:TOP_K] for t in range(tokens)])
    expected: list[list[int]] = [[], [], [], []]
    for expert in range(9):
        pairs = np.flatnonzero(ids.reshape(-1) == expert)
        for start in range(0, len(pairs), rows):
            tile = (expert, len(expected[3]) + start, min(rows, len(pairs) - start))
            for column, value in zip(expected, tile, strict=False):
                column.append(value)
        expected[3].extend(pairs.tolist())
    assert in_use(jax.jit(tile_map, static_argnums=(1, 2))(ids, 9, rows)) == expected


@pytest.mark.parametrize(
    ("arch", "format", "tokens"),
    [("gfx942", PTPC, 7), *sweep([("gfx950", MXFP4, 7)], []), ("gfx950", MXFP4, 70)],
)
def test_rows_quantised_beside_it_are_those_of_a_launch_of_their_own(
    arch: str, format: QuantFormat, tokens: int
) -> None:
    arrays, x = logits(tokens, 24), jnp.tile(ROWS, (tokens // 7, 1)).at[3, 5].set(jnp.nan)
    with gpu.assume(arch):
        got = run("pallas", *arrays, x=x, format=format)
        alone = jax.jit(lambda x: activations(x, format))(x)
    bits = [jax.tree.map(lambda a: np.asarray(a).tobytes(), rows) for rows in (got.rows, alone)]
    assert got.rows is not None and bits[0] == bits[1]
    expected = run("reference", *arrays)
    assert_same(got, expected)


def test_rows_that_multiply_as_they_are_are_not_made() -> None:
    for implementation, format in (("pallas", QuantFormat("int4_group")), ("xla", MXFP4)):
        routes = jax.eval_shape(
            lambda *a, implementation=implementation, format=format: route(
                *a, options=OPTIONS, x=ROWS, format=format, implementation=implementation
            ),
            *logits(7, 24),
        )
        assert routes.rows is None


@pytest.mark.usefixtures("no_jaxtyping")
def test_wrong_shapes_and_dtypes_are_refused() -> None:
    scores, bias = logits(2, 3)
    with pytest.raises(ValueError, match=r"expected logits \[t, experts\]"):
        route(scores, bias, OPTIONS)
    with pytest.raises(ValueError, match="expected 2 rows of x, got 7"):
        run("xla", *logits(2, 24), x=ROWS, format=PTPC)
    with pytest.raises(ValueError, match="expected float32 logits, got bfloat16"):
        run("pallas", logits(2, 24)[0].astype(jnp.bfloat16), logits(2, 24)[1])
    with pytest.raises(ValueError, match="expected at most 4096 experts, got 4097"):
        run("pallas", *logits(2, 4097))


def test_experts_take_the_routers_map() -> None:
    rng = np.random.default_rng(3)
    got = run("pallas", *logits(7, 24))
    ids, weights = map(jnp.asarray, got[:2])
    x, stack = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((7, 32), (24, 32, 32)))

    @jax.jit
    def mix(tiles: TileMap | None) -> jax.Array:
        three = stack, stack, stack
        return grouped_mlp(x, *three, ids, weights, tiles=tiles, implementation="pallas")

    np.testing.assert_array_equal(mix(got.tiles), mix(None))
