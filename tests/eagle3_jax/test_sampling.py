"""Sampling against its definitions in float64, and the statistics of its noise."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_distribution import exact_distribution
from numpy.typing import NDArray
from sampling_rows import sampling_rows

from eagle3_jax.sampling.logprobs import token_logprobs
from eagle3_jax.sampling.noise import uniform
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import gumbel, nan_if_nonfinite, process_logits, sample
from eagle3_jax.sampling.token_mask import mask_logits, open_masks

SAMPLE = jax.jit(sample)
PROCESS = jax.jit(process_logits)
GUMBEL = jax.jit(gumbel)
IDS = jnp.arange(1024)


@pytest.mark.parametrize("vocab", [50, 64, 1000])
@pytest.mark.parametrize("tied", [False, True])
def test_kept_sets_equal_those_of_a_sort(vocab: int, tied: bool):
    rng = np.random.default_rng(vocab)
    batch = 24
    logits = rng.normal(size=(batch, 1, vocab)).astype(np.float32) * 2
    if tied:
        logits = np.round(logits)
    fields = {
        "temperature": rng.choice([0.25, 0.5, 1.0, 2.0], batch),
        "top_p": rng.choice([0.05, 0.5, 0.9, 0.99, 1.0], batch),
        "top_k": rng.choice([0, 1, 2, 10, vocab, vocab + 5], batch),
        "min_p": rng.choice([0.0, 0.01, 0.3, 0.999, 1.0], batch),
        "typical_p": rng.choice([0.1, 0.5, 0.95, 1.0, 1.0], batch),
    }
    positions = jnp.zeros((batch, 1), jnp.int32)
    scores = np.asarray(
        PROCESS(jnp.asarray(logits), positions, sampling_rows(batch, (), **fields))
    )[:, 0]
    for i in range(batch):
        options = SamplingParams(**{name: values[i].item() for name, values in fields.items()})
        expected = exact_distribution(logits[i, 0], options)
        np.testing.assert_array_equal(np.isfinite(scores[i]), expected > 0)
        np.testing.assert_allclose(np.exp(scores[i]) / np.exp(scores[i]).sum(), expected, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.3])
@pytest.mark.parametrize("option", [{"min_p": 1.0}, {"top_p": 1e-30}], ids=["min-p", "top-p"])
def test_even_the_strictest_cut_keeps_the_best_and_its_equals(
    temperature: float, option: dict[str, Any]
):
    logits = jnp.asarray([[[1.0, 3.0, 2.0, 3.0, -1.0]]])
    rows = sampling_rows(1, temperature=temperature, **option)
    scores = PROCESS(logits, jnp.zeros((1, 1), jnp.int32), rows)
    np.testing.assert_array_equal(np.isfinite(scores[0, 0]), [False, True, False, True, False])


@pytest.mark.parametrize("typical_p", [1e-30, 0.05, 0.5])
def test_typical_p_may_bar_the_best_of_sampled_rows_and_nothing_of_greedy_ones(typical_p: float):
    logits = jnp.asarray([[[4.0, *np.linspace(2.0, 1.0, 60)]]] * 2)
    rows = sampling_rows(2, typical_p=typical_p, temperature=[1.0, 0.0])
    kept = np.isfinite(np.asarray(PROCESS(logits, jnp.zeros((2, 1), jnp.int32), rows)))[:, 0]
    assert kept[0].any() and not kept[0, 0]
    assert kept[1].all()


def test_temperature_zero_takes_the_largest_logit_and_the_lowest_id_of_equals():
    rng = np.random.default_rng(0)
    logits = rng.integers(-3, 4, size=(3, 5, 40)).astype(np.float32)
    positions = jnp.arange(15, dtype=jnp.int32).reshape(3, 5)
    filters = sampling_rows(3, temperature=0.0, top_p=0.3, top_k=2, min_p=0.1)
    tokens = SAMPLE(jnp.asarray(logits), positions, filters)
    np.testing.assert_array_equal(tokens, logits.argmax(-1))


def test_greedy_and_sampled_rows_share_a_batch():
    logits = jnp.asarray(np.random.default_rng(1).normal(size=(2, 400, 30)).astype(np.float32))
    positions = jnp.broadcast_to(jnp.arange(400, dtype=jnp.int32), (2, 400))
    tokens = np.asarray(SAMPLE(logits, positions, sampling_rows(2, temperature=[0.0, 1.0])))
    best = np.asarray(logits).argmax(-1)
    np.testing.assert_array_equal(tokens[0], best[0])
    assert 0.02 < (tokens[1] == best[1]).mean() < 0.5


def test_stop_ids_cannot_be_sampled_before_min_len_and_can_from_there():
    logits = np.zeros((1, 6, 10), np.float32)
    logits[..., [2, 7]] = 20.0
    positions = jnp.arange(6, dtype=jnp.int32)[None]
    tokens = np.asarray(
        SAMPLE(jnp.asarray(logits), positions, sampling_rows(1, (2, 7), min_len=4))
    )[0]
    assert not np.isin(tokens[:4], [2, 7]).any()
    assert np.isin(tokens[4:], [2, 7]).all()
    greedy = sampling_rows(1, (2, 7), min_len=4, temperature=0.0)
    np.testing.assert_array_equal(
        SAMPLE(jnp.asarray(logits), positions, greedy)[0], [0, 0, 0, 0, 2, 2]
    )


def test_a_reduced_vocabulary_sees_the_noise_and_the_stop_ids_of_the_full_one():
    ids = jnp.asarray([1, 4, 5, 9, 13, 17], jnp.int32)
    seed, positions = jnp.asarray([[3, 4]], jnp.uint32), jnp.arange(7, dtype=jnp.int32)[None]
    full = np.asarray(GUMBEL(seed, positions, jnp.arange(20)))
    np.testing.assert_array_equal(GUMBEL(seed, positions, ids), full[..., np.asarray(ids)])
    reduced = np.random.default_rng(5).normal(size=(1, 7, 6)).astype(np.float32)
    logits = np.full((1, 7, 20), -np.inf, np.float32)
    logits[..., np.asarray(ids)] = reduced
    rows = sampling_rows(1, (4, 9), min_len=3, seed=[[3, 4]], top_k=3, top_p=0.9)
    np.testing.assert_array_equal(
        SAMPLE(jnp.asarray(reduced), positions, rows, ids),
        SAMPLE(jnp.asarray(logits), positions, rows),
    )


def uniforms(
    seeds: NDArray[Any], first_position: int = 0, first_id: int = 0
) -> NDArray[np.float64]:
    """Noise [seeds, 64 positions, 1024 ids] mapped back to uniforms by the Gumbel distribution."""
    positions = jnp.broadcast_to(first_position + jnp.arange(64), (len(seeds), 64))
    values = GUMBEL(jnp.asarray(seeds, jnp.uint32)[:, None], positions, first_id + IDS)
    return np.exp(-np.exp(-np.asarray(values, np.float64)))


def test_noise_is_gumbel_distributed():
    ordered = np.sort(uniforms(np.array([[1, 0], [2, 0], [0, 1], [7, 9]])).ravel())
    empirical = (np.arange(ordered.size) + 0.5) / ordered.size
    # Kolmogorov and Smirnov: 1.95 / sqrt(n) is the 99.9 % point.
    assert np.abs(ordered - empirical).max() < 1.95 / np.sqrt(ordered.size)


def test_no_row_is_another_row_at_shifted_ids():
    # Were a row keyed by one 32-bit word, about 15 of these 2^31 pairs of rows would overlap.
    positions = jnp.arange(65536)[None]
    values = np.asarray(GUMBEL(jnp.zeros((1, 2), jnp.uint32), positions, jnp.arange(16)))[0]
    words = values.view(np.uint32).astype(np.uint64)
    neighbours = words[:, :-1] << np.uint64(32) | words[:, 1:]
    assert np.unique(neighbours).size == neighbours.size


@pytest.mark.parametrize("bit", (0, 5, 16, 31))
def test_flipping_one_bit_of_any_input_flips_half_of_the_noise(bit: int):
    ids = jnp.asarray([17, 17 ^ (1 << min(bit, 30))], jnp.int32)
    seeds = np.arange(2000, dtype=np.uint32)
    base = np.stack([seeds, seeds + 7], axis=1)
    position = jnp.full((2000,), 33, jnp.int32)
    median = -np.log(np.log(2))

    def halves(seed: NDArray[np.uint32], where: jax.Array) -> NDArray[np.bool_]:
        return np.asarray(GUMBEL(jnp.asarray(seed), where, ids)) > median

    plain = halves(base, position)
    flip = np.uint32(1 << bit)
    flipped = [
        halves(base ^ np.array([flip, 0], np.uint32), position)[:, 0],
        halves(base ^ np.array([0, flip], np.uint32), position)[:, 0],
        halves(base, position ^ (1 << min(bit, 30)))[:, 0],
        plain[:, 1],
    ]
    for other in flipped:
        assert 0.44 < (other != plain[:, 0]).mean() < 0.56


def test_a_row_with_a_logit_that_is_not_finite_fails_as_a_whole():
    """Minus infinity of a model bars nothing either."""
    logits = jnp.array([[[1.0, 2.0], [1.0, -jnp.inf], [jnp.inf, 0.0], [jnp.nan, 0.0]]])
    failed = jnp.isnan(nan_if_nonfinite(logits))
    assert failed.tolist() == [[[False] * 2, [True] * 2, [True] * 2, [True] * 2]]


def test_a_uniform_number_is_below_1(monkeypatch: pytest.MonkeyPatch):
    every_bit = jnp.full((1, 1, 1), 2**32 - 1, jnp.uint32)
    monkeypatch.setattr("pallas_kernels.noise.hash_bits", lambda *inputs: every_bit)
    number = uniform(jnp.zeros((1, 2), jnp.uint32), jnp.zeros((1, 1), jnp.int32))
    assert number.item() == 1 - 2.0**-24


def test_the_best_tokens_of_a_large_vocabulary_are_those_of_a_sort():
    """They lie in different blocks of ids, and two are equal."""
    scores = np.random.default_rng(0).permutation(1500).astype(np.float32)
    scores[1400] = scores[3]
    found = token_logprobs(jnp.asarray(scores)[None], jnp.array([3]))
    expected = np.argsort(-scores, kind="stable")[: found.best_ids.shape[1]]
    assert found.best_ids[0].tolist() == expected.tolist()
    assert found.rank.item() == (scores >= scores[3]).sum()


@pytest.mark.parametrize("vocab", [1, 31, 32, 33, 163_840])
def test_a_token_keeps_its_logit_exactly_where_its_bit_is_set(vocab: int) -> None:
    rng = np.random.default_rng(vocab)
    masks = rng.integers(0, 2**32, open_masks(vocab, 2, 3).shape, np.uint32)
    logits = rng.normal(size=(2, 3, vocab)).astype(np.float32)
    bits = np.unpackbits(masks.view(np.uint8), axis=-1, bitorder="little")[..., :vocab]
    expected = np.where(bits == 1, logits, -np.inf)
    assert (np.asarray(mask_logits(jnp.asarray(logits), jnp.asarray(masks))) == expected).all()
    some = np.arange(0, vocab, 3)
    reduced = mask_logits(jnp.asarray(logits[..., some]), jnp.asarray(masks), jnp.asarray(some))
    assert (np.asarray(reduced) == expected[..., some]).all()
