"""Choosing a token in the kernel, interpreted, against written logits and against the sampler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from compiling import compiled
from sampling_rows import sampling_rows
from sweeps import sweep
from test_dense_products import rows
from test_quantized import random_array

from eagle3_jax.sampling.sampler import NO_CANDIDATE as SAMPLER_NO_CANDIDATE
from eagle3_jax.sampling.sampler import NOT_FINITE as SAMPLER_NOT_FINITE
from eagle3_jax.sampling.sampler import sample
from pallas_kernels import QuantFormat, gpu, logits_argmax
from pallas_kernels.logits_argmax import ArgmaxOptions
from pallas_kernels.logits_argmax.options import NO_CANDIDATE, NOT_FINITE
from pallas_kernels.quantized import Kernel, for_gpu

ROWS, HIDDEN, VOCAB = 18, 64, 150
RNG = np.random.default_rng(3)
TEMPERATURE = np.tile(np.array([0, 0.5, 1.0, 3.0], np.float32), 5)[:ROWS]
SEED = RNG.integers(0, 2**32, (ROWS, 2), np.uint32)
POSITIONS = RNG.integers(0, 1000, ROWS).astype(np.int32)
PLAIN = ArgmaxOptions(*map(jnp.asarray, (TEMPERATURE, SEED, POSITIONS)))


def options(min_p: float | None, biases: int) -> ArgmaxOptions:
    chosen = PLAIN
    if min_p is not None:
        chosen = chosen._replace(min_p=jnp.full(ROWS, min_p, jnp.float32))
    if biases:
        ids = RNG.integers(-1, VOCAB, (ROWS, biases)).astype(np.int32)
        bias = RNG.choice(np.array([4, -3, -np.inf], np.float32), (ROWS, biases))
        chosen = chosen._replace(bias_ids=jnp.asarray(ids), bias=jnp.asarray(bias))
    return chosen


def head() -> jax.Array:
    return jnp.asarray(rows(HIDDEN, VOCAB, seed=2) / 5)


def run(
    x: np.ndarray | jax.Array,
    kernel: Kernel,
    chosen: ArgmaxOptions,
    implementation: str = "pallas",
) -> tuple[np.ndarray, np.ndarray]:
    found = compiled(logits_argmax, implementation=implementation)(x, kernel, chosen)
    return np.asarray(found[0]), np.asarray(found[1])


def assert_same(got: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    np.testing.assert_array_equal(got[1], expected[1])
    np.testing.assert_allclose(got[0], expected[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("min_p", "biases"),
    [*sweep([(None, 0), (None, 3)], []), (0.0, 0), (0.05, 3), (0.7, 0), (1.0, 0)],
)
def test_chooses_as_from_written_logits(min_p: float | None, biases: int) -> None:
    x, chosen = rows(ROWS, HIDDEN), options(min_p, biases)
    assert_same(run(x, head(), chosen), run(x, head(), chosen, "reference"))


def test_a_tile_whose_winner_min_p_bars_gives_its_next_one() -> None:
    """Close logits, so that noise decides and many tiles' own cuts are too low."""
    x, chosen = rows(ROWS, HIDDEN) / 8, options(0.7, 0)
    chosen = chosen._replace(temperature=jnp.ones(ROWS))
    assert_same(run(x, head(), chosen), run(x, head(), chosen, "reference"))


@pytest.mark.parametrize("arch", sweep(["gfx950", "gfx942"], ["gfx942"]))
def test_a_float8_head_chooses_as_the_contract(arch: str) -> None:
    array, _ = random_array(QuantFormat("fp8_channel", "fp8_token"), VOCAB, HIDDEN)
    x, chosen = rows(ROWS, HIDDEN), options(0.05, 3)
    with gpu.assume(arch):
        assert_same(run(x, for_gpu(array), chosen), run(x, array, chosen, "reference"))


def test_it_is_the_samplers_choice() -> None:
    """Same noise, same filters: only a tie within rounding could differ."""
    x, chosen = rows(ROWS, HIDDEN), options(0.05, 0)
    logits = jnp.asarray(x) @ head()
    sampling = sampling_rows(ROWS, temperature=chosen.temperature, seed=chosen.seed, min_p=0.05)
    expected = jax.jit(sample)(logits[:, None], chosen.positions[:, None], sampling)[:, 0]
    np.testing.assert_array_equal(run(x, head(), chosen)[1], expected)
    assert (SAMPLER_NOT_FINITE, SAMPLER_NO_CANDIDATE) == (NOT_FINITE, NO_CANDIDATE)


def test_a_tie_goes_to_the_lowest_id_of_all_tiles() -> None:
    same = jnp.ones((HIDDEN, VOCAB))
    greedy = PLAIN._replace(temperature=jnp.zeros(ROWS))
    np.testing.assert_array_equal(run(rows(ROWS, HIDDEN), same, greedy)[1], 0)
    barred = greedy._replace(bias_ids=jnp.zeros((ROWS, 1), jnp.int32), bias=jnp.full((ROWS, 1), -1))
    np.testing.assert_array_equal(run(rows(ROWS, HIDDEN), same, barred)[1], 1)


@pytest.mark.parametrize("min_p", sweep([None, 0.1], [0.1]))
def test_spoiled_rows_and_barred_vocabularies_have_codes_of_their_own(min_p: float | None) -> None:
    x = rows(ROWS, HIDDEN)
    x[2, 5], x[7, 0] = np.nan, np.inf
    column = np.asarray(head(), np.float64)[:, 100]
    x[9] = -5e38 / (column @ column) * column  # One logit is -inf, and nothing but finite others.
    every = jnp.broadcast_to(jnp.arange(VOCAB, dtype=jnp.int32), (ROWS, VOCAB))
    bias = jnp.where(jnp.arange(ROWS) == 4, -jnp.inf, 0.0)[:, None] * jnp.ones((1, VOCAB))
    chosen = options(min_p, 0)._replace(bias_ids=every, bias=jnp.nan_to_num(bias, neginf=-jnp.inf))
    got = run(x, head(), chosen)
    assert_same(got, run(x, head(), chosen, "reference"))
    np.testing.assert_array_equal(got[1][[2, 7, 4]], [NOT_FINITE, NOT_FINITE, NO_CANDIDATE])
    assert got[1][9] == NOT_FINITE
    assert (got[1][[0, 1, 3, 5]] >= 0).all()


def test_neither_neighbours_nor_their_order_change_a_rows_choice() -> None:
    x, chosen = rows(ROWS, HIDDEN), options(0.3, 3)
    scores, ids = run(x, head(), chosen)
    order = np.random.default_rng(0).permutation(ROWS)
    mixed = run(x[order], head(), jax.tree.map(lambda option: option[order], chosen))
    np.testing.assert_array_equal(mixed[0], scores[order])
    np.testing.assert_array_equal(mixed[1], ids[order])
    x[1:] *= -2
    changed = run(x, head(), chosen)
    assert (changed[0][0], changed[1][0]) == (scores[0], ids[0])


@pytest.mark.parametrize("implementation", sweep(["pallas", "reference"], ["pallas"]))
def test_shards_of_the_vocabulary_agree_on_the_whole_ones_choice(implementation: str) -> None:
    x, chosen, shards = rows(ROWS, HIDDEN), options(0.4, 3), 3
    expected = run(x, head(), chosen, "reference")
    parts = jnp.stack(jnp.split(head(), shards, axis=1))
    ids = jnp.arange(VOCAB, dtype=jnp.int32).reshape(shards, -1)

    def on_shard(part: jax.Array, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
        return logits_argmax(
            jnp.asarray(x),
            part,
            chosen,
            token_ids=ids,
            axis_name="vocab",
            implementation=implementation,
        )

    scores, found = jax.jit(jax.vmap(on_shard, axis_name="vocab"))(parts, ids)
    for shard in range(shards):
        assert_same((np.asarray(scores[shard]), np.asarray(found[shard])), expected)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="logits_argmax: expected"):
        run(rows(ROWS, HIDDEN - 1), head(), PLAIN)
    with pytest.raises(ValueError, match="expected weights in float32 on cpu, got bfloat16"):
        run(rows(ROWS, HIDDEN), head().astype(jnp.bfloat16), PLAIN)
