"""Proofs (a) and (b) for options that look at token ids: bias, allowed ids, bad words, penalties.

Inside a chain of drafts, the row that decides a position sees what it would see if the drafts
before it had been committed one by one: for every draft string. And the distribution that results
is that of the options.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exact_distribution import check_draws
from slot_rows import option_rows
from tree_model import all_strings

from eagle3_jax.engine import Request
from eagle3_jax.engine.programs.packing import pack_controls
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.sampler import sample
from eagle3_jax.speculative.logit_control_rows import LogitControls
from eagle3_jax.speculative.logit_controls import control_logits

Control = Callable[..., jax.Array]
VOCAB, FULL_VOCAB, K = 4, 163_840, 3
PROMPT, ANSWER = [0, 2], [1]
CHAINED = (
    SamplingParams(repetition_penalty=1.7),
    SamplingParams(presence_penalty=0.9, frequency_penalty=0.4),
    SamplingParams(bad_words_ids=[[1, 3], [2], [0, 0, 1]]),
    SamplingParams(logit_bias={1: 2.0, 3: -1.5}, allowed_token_ids=[0, 1, 3]),
    SamplingParams(repetition_penalty=0.6, frequency_penalty=-0.7, bad_words_ids=[[3, 1]]),
)
AT_FULL_VOCAB = (
    SamplingParams(temperature=1.0, logit_bias={5: 3.0, 900: -4.0}, top_p=0.95),
    SamplingParams(temperature=0.8, repetition_penalty=1.3, frequency_penalty=0.5, min_p=0.01),
    SamplingParams(temperature=1.2, presence_penalty=1.5, bad_words_ids=[[7]], top_k=200),
)


def controls_of(options: SamplingParams, answer: list[int], vocab: int) -> LogitControls:
    """The device row of a request that has answered so far, by the engine's packing."""
    sequence = Sequence.of(Request("", PROMPT, options), (), 10_000, None)
    sequence.prefill_ids = [*PROMPT, *answer]
    return jax.tree.map(jnp.asarray, pack_controls(sequence, vocab))


def check_chain(control: Control, options: SamplingParams) -> None:
    """Row j of a chain equals the only row after its first j drafts were committed."""
    rows, position = option_rows([options], PROMPT), len(PROMPT) + len(ANSWER)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(1, K + 1, VOCAB)), jnp.float32)
    places = position + jnp.arange(K + 1)[None]
    chain, alone = jax.jit(control), jax.jit(control_logits)
    before = controls_of(options, ANSWER, VOCAB)
    for drafts in all_strings(VOCAB, K):
        found = chain(logits, places, jnp.asarray(drafts)[None], rows, before)
        for j in range(K + 1):
            committed = controls_of(options, [*ANSWER, *drafts[:j].tolist()], VOCAB)
            here, nothing = slice(j, j + 1), jnp.zeros((1, 0), jnp.int32)
            plain = alone(logits[:, here], places[:, here], nothing, rows, committed)
            np.testing.assert_allclose(found[:, here], plain, rtol=1e-6, atol=1e-6)


def expected_logits(logits: np.ndarray, options: SamplingParams, answer: list[int]) -> np.ndarray:
    """The definitions of these options, one after the other, in float32."""
    scores = logits.copy()
    for token, value in options.bias_pairs:
        scores[token] += np.float32(value)
    scores[[word[0] for word in options.bad_words_ids if len(word) == 1]] = -np.inf
    seen = np.unique([*PROMPT, *answer])
    penalty = np.float32(options.repetition_penalty)
    scores[seen] = np.where(scores[seen] > 0, scores[seen] / penalty, scores[seen] * penalty)
    for token, count in zip(*np.unique(answer, return_counts=True), strict=True):
        scores[token] -= options.frequency_penalty * count + options.presence_penalty
    return scores


def check_distribution(control: Control, options: SamplingParams, draws: int) -> None:
    """Draws at the real vocabulary after an answer that has said its likeliest tokens."""
    logits = np.random.default_rng(1).normal(scale=1.8, size=FULL_VOCAB).astype(np.float32)
    likely = [5, 7, 900, 4000]
    logits[likely] = [9.5, 9.0, 9.2, 8.8]
    answer = [*likely, 5, 5, 900]
    controls = controls_of(options, answer, FULL_VOCAB)
    many = jax.jit(partial(_draw, control))
    tokens = []
    for seed in range(0, draws, 8):
        rows = option_rows([replace(options, seed=seed)], PROMPT)
        tokens.append(many(jnp.asarray(logits), rows, controls))
    check_draws(np.concatenate(tokens), expected_logits(logits, options, answer), options)


def _draw(control: Control, logits: jax.Array, rows: Any, controls: LogitControls) -> jax.Array:
    places = 50 + jnp.arange(8)[None]
    one = control(logits[None, None], places[:, :1], jnp.zeros((1, 0), jnp.int32), rows, controls)
    return sample(jnp.broadcast_to(one, (1, 8, FULL_VOCAB)), places, rows)[0]


@pytest.mark.parametrize("options", CHAINED, ids=["repetition", "counts", "words", "bias", "all"])
def test_inside_a_chain_drafts_count_as_if_committed(options: SamplingParams) -> None:
    check_chain(control_logits, options)


@pytest.mark.optimised
@pytest.mark.parametrize("options", AT_FULL_VOCAB, ids=["bias", "repetition", "presence"])
def test_draws_follow_the_distribution_of_token_options(
    options: SamplingParams, long: bool
) -> None:
    check_distribution(control_logits, options, draws=4000 if long else 400)


def ignoring_drafts(
    logits: jax.Array, positions: jax.Array, draft_ids: jax.Array, *rows: Any
) -> jax.Array:
    """Every row of a chain sees the committed tokens alone."""
    alone = [
        control_logits(logits[:, j : j + 1], positions[:, j : j + 1], draft_ids[:, :0], *rows)
        for j in range(logits.shape[1])
    ]
    return jnp.concatenate(alone, axis=1)


def without_the_answer(logits: jax.Array, *inputs: Any) -> jax.Array:
    """Penalties that never see what was said."""
    positions, drafts, rows, controls = inputs
    silent = replace(controls, counts=jnp.zeros_like(controls.counts))
    return control_logits(logits, positions, drafts, rows, silent)


@pytest.mark.parametrize("options", CHAINED[:3], ids=["repetition", "counts", "words"])
def test_the_proof_notices_drafts_that_do_not_count(options: SamplingParams) -> None:
    with pytest.raises(AssertionError):
        check_chain(ignoring_drafts, options)


@pytest.mark.optimised
def test_the_proof_notices_penalties_without_an_answer() -> None:
    with pytest.raises(AssertionError, match="distribution"):
        check_distribution(without_the_answer, AT_FULL_VOCAB[1], draws=400)
