"""Proof (b): at the real vocabulary draws follow the distribution that the options give, and so do
the tokens that rejection sampling commits."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken_rejection import never_subtracts_beyond_the_draft
from exact_distribution import check_draws
from slot_rows import decoding_rows, option_rows

from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.rows import SamplingRows
from eagle3_jax.sampling.sampler import process_logits, sample
from eagle3_jax.speculative.propose import Drafts, draw_with_probs
from eagle3_jax.speculative.rejection import verify_by_rejection
from pallas_kernels import noise

pytestmark = pytest.mark.optimised

VOCAB = 163_840
ROWS = 8
GRID = [
    SamplingParams(temperature=temperature, top_p=top_p, min_p=min_p, top_k=top_k)
    for temperature, top_p, min_p, top_k in product(
        (0.6, 1.0, 1.5), (1.0, 0.9, 0.5), (0.0, 0.02), (0, 50)
    )
]
SHORT = [GRID[i] for i in (0, 6, 11, 12, 17, 31)]
"""Every value of every option, alone and together."""
Sampler = Callable[[jax.Array, jax.Array, SamplingRows], jax.Array]


def logits_of_a_model() -> np.ndarray:
    """A few likely tokens over a long tail, as language models have them."""
    rng = np.random.default_rng(0)
    logits = rng.normal(scale=1.8, size=VOCAB)
    logits[rng.choice(VOCAB, 40, replace=False)] += rng.uniform(3, 8, size=40)
    return logits.astype(np.float32)


def draw(
    sampler: Sampler, logits: np.ndarray, grid: list[SamplingParams], draws: int
) -> np.ndarray:
    """Tokens [settings, draws] of one row of logits, over many seeds and positions."""
    many = jax.jit(
        lambda row, positions, options: sampler(
            jnp.broadcast_to(row, (*positions.shape, VOCAB)), positions, options
        )
    )
    seeded = [replace(setting, seed=7 * i) for i, setting in enumerate(grid)]
    options, batches = option_rows(seeded, [0]), []
    for start in range(0, draws, ROWS):
        positions = jnp.broadcast_to(start % 64 + jnp.arange(ROWS), (len(grid), ROWS))
        words = options.seed + jnp.asarray([start // 64, 1], jnp.uint32)
        batches.append(many(jnp.asarray(logits), positions, replace(options, seed=words)))
    return np.concatenate(batches, axis=1)


def check_grid(sampler: Sampler, grid: list[SamplingParams], draws: int) -> None:
    """Every setting's draws follow its own distribution."""
    logits = logits_of_a_model()
    for setting, tokens in zip(grid, draw(sampler, logits, grid, draws), strict=True):
        check_draws(tokens, logits, setting)


def test_draws_follow_the_distribution_of_their_options(long: bool) -> None:
    if long:
        check_grid(sample, GRID, draws=2000)
    else:
        check_grid(sample, SHORT, draws=240)


def temperature_last(logits: jax.Array, positions: jax.Array, options: SamplingRows) -> jax.Array:
    """Filters before the temperature."""
    warm = replace(options, temperature=jnp.ones_like(options.temperature))
    scores = process_logits(logits, positions, warm)
    return sample(scores, positions, replace(options, **unfiltered(options)))


def noise_without_position(
    logits: jax.Array, positions: jax.Array, options: SamplingRows
) -> jax.Array:
    """One noise for all positions of a request."""
    return sample(logits, jnp.zeros_like(positions), options)


def unfiltered(options: SamplingRows) -> dict[str, jax.Array]:
    """Fields without filters."""
    return {
        "top_p": jnp.ones_like(options.top_p),
        "top_k": jnp.zeros_like(options.top_k),
        "min_p": jnp.zeros_like(options.min_p),
    }


@pytest.mark.parametrize(
    ("wrong", "setting"), [(temperature_last, SHORT[1]), (noise_without_position, SHORT[0])]
)
def test_the_proof_notices(wrong: Sampler, setting: SamplingParams) -> None:
    with pytest.raises(AssertionError):
        check_grid(wrong, [setting], draws=400)


def test_the_proof_notices_coarse_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uniforms of 12 bits: too few for so many ids."""
    exact = noise.hash_bits

    def coarse(*inputs: jax.Array) -> jax.Array:
        return exact(*inputs) >> 20 << 20

    monkeypatch.setattr(noise, "hash_bits", coarse)
    with pytest.raises(AssertionError, match="distribution"):
        check_grid(sample, SHORT[:1], draws=400)


K, BATCH, SEQ_LEN, GAP = 2, 4, 20, 1.5
SETTINGS = (
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_p=0.9, min_p=0.02),
)


def committed_tokens(verify: Callable, setting: SamplingParams, draws: int) -> np.ndarray:
    """Tokens of rounds whose every row has the same logits; the draft's are GAP off."""
    rng = np.random.default_rng(3)
    target = logits_of_a_model()
    draft = target + rng.normal(scale=GAP, size=VOCAB).astype(np.float32)

    @jax.jit
    def one_round(target: jax.Array, draft: jax.Array, options: SamplingRows):
        lengths = np.full(BATCH, SEQ_LEN)
        rows = decoding_rows(options, lengths, lengths + 99, K)
        positions = jnp.broadcast_to(SEQ_LEN + 1 + jnp.arange(K), (BATCH, K))
        proposed = jnp.broadcast_to(draft, (BATCH, K, VOCAB))
        starts = jnp.asarray(lengths)
        drafts = Drafts(*draw_with_probs(proposed, positions, starts, options, None, VOCAB))
        result = verify(jnp.broadcast_to(target, (BATCH, K + 1, VOCAB)), drafts, rows)
        return result.token_ids, result.num_accepted

    found: list[int] = []
    for seed in range(0, 1_000_000, BATCH):
        if len(found) >= draws:
            break
        options = option_rows([replace(setting, seed=seed + i) for i in range(BATCH)], [0])
        tokens, accepted = jax.device_get(one_round(target, draft, options))
        found += tokens[np.arange(K + 1) <= accepted[:, None]].tolist()
    return np.array(found)


@pytest.mark.parametrize(
    ("setting", "block"),
    [(SETTINGS[0], False), (SETTINGS[1], False), (SETTINGS[1], True)],
    ids=["plain", "filtered", "block"],
)
def test_committed_tokens_follow_the_targets_distribution(
    setting: SamplingParams, block: bool, long: bool
) -> None:
    verify = partial(verify_by_rejection, block=block)
    draws = committed_tokens(verify, setting, 4000 if long else 160)
    check_draws(draws, logits_of_a_model(), setting)


def test_the_proof_notices_tokens_of_the_drafts_distribution() -> None:
    draws = committed_tokens(never_subtracts_beyond_the_draft, SETTINGS[0], 160)
    with pytest.raises(AssertionError, match="distribution"):
        check_draws(draws, logits_of_a_model(), SETTINGS[0])
