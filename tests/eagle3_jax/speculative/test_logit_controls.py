"""Token options of a chain against transformers' processors and plain NumPy, row by row."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from lab import one_row
from transformers import NoBadWordsLogitsProcessor, RepetitionPenaltyLogitsProcessor

from eagle3_jax.engine.programs.packing import pack_controls
from eagle3_jax.engine.request import Request
from eagle3_jax.engine.sequence import Sequence
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.logit_control_rows import LogitControls, commit_tokens
from eagle3_jax.speculative.logit_controls import control_logits

VOCAB = 24
PROMPT, ANSWER, DRAFTS = [3, 5, 3, 8], [1, 9, 1, 2], [4, 1, 9]
CONTROL = jax.jit(control_logits)


def packed(answer: list[int] = ANSWER, **options: Any) -> LogitControls:
    """The row of a request that is resumed after `answer`."""
    request = Request("x", PROMPT, SamplingParams(max_tokens=None, **options))
    sequence = Sequence.of(request, (7,), 64, None)
    sequence.prefill_ids += answer
    return jax.tree.map(jnp.asarray, pack_controls(sequence, VOCAB))


def chain(controls: LogitControls, logits: np.ndarray, drafts: list[int] = DRAFTS) -> np.ndarray:
    """The controlled logits of each row of one chain."""
    position = len(PROMPT) + len(ANSWER)
    places = jnp.arange(position, position + len(logits))[None]
    ids = jnp.asarray(drafts, jnp.int32)[None]
    return np.asarray(CONTROL(logits[None], places, ids, one_row(), controls))[0]


@pytest.fixture
def logits() -> np.ndarray:
    rng = np.random.default_rng(0)
    return (3 * rng.normal(size=(len(DRAFTS) + 1, VOCAB))).astype(np.float32)


def histories() -> list[list[int]]:
    """The answer as each row of the chain sees it."""
    return [ANSWER + DRAFTS[:row] for row in range(len(DRAFTS) + 1)]


@pytest.mark.parametrize("penalty", [1.3, 0.7])
def test_repetition_is_that_of_transformers_over_prompt_and_answer(
    logits: np.ndarray, penalty: float
) -> None:
    processor = RepetitionPenaltyLogitsProcessor(penalty)
    controlled = chain(packed(repetition_penalty=penalty), logits)
    for row, answer in enumerate(histories()):
        ids = torch.LongTensor([PROMPT + answer])
        expected = processor(ids, torch.FloatTensor(logits[row : row + 1].copy()))
        np.testing.assert_allclose(controlled[row], expected[0].numpy(), rtol=1e-6)


def test_presence_and_frequency_count_the_answer_alone(logits: np.ndarray) -> None:
    controlled = chain(packed(presence_penalty=0.5, frequency_penalty=-0.25), logits)
    for row, answer in enumerate(histories()):
        counts = np.bincount(answer, minlength=VOCAB)
        expected = logits[row] - 0.5 * (counts > 0) + 0.25 * counts
        np.testing.assert_allclose(controlled[row], expected, rtol=1e-6, atol=1e-6)


def test_bad_words_are_those_of_transformers_over_the_answer(logits: np.ndarray) -> None:
    words = [[6], [1, 2, 11], [2, 4, 12], [2, 13], [9, 14], [1, 9, 1, 2, 4, 1, 9, 15], [8, 1, 16]]
    processor = NoBadWordsLogitsProcessor(words, eos_token_id=7)
    controlled = chain(packed(bad_words_ids=words), logits)
    barred: set[int] = set()
    for row, answer in enumerate(histories()):
        ids = torch.LongTensor([answer])
        expected = processor(ids, torch.FloatTensor(logits[row : row + 1].copy()))
        np.testing.assert_array_equal(controlled[row], expected[0].numpy())
        barred |= set(np.flatnonzero(np.isinf(controlled[row])).tolist())
    assert barred == {6, 11, 12, 13, 14, 15}


def test_allowed_ids_and_bias_come_before_the_penalties(logits: np.ndarray) -> None:
    allowed, bias = [1, 2, 3, 20], {3: -50.0, 2: 9.5, 11: 100.0}
    options = {"allowed_token_ids": allowed, "logit_bias": bias, "repetition_penalty": 1.5}
    controlled = chain(packed(**options), logits)
    for row, answer in enumerate(histories()):
        expected = np.full(VOCAB, -np.inf)
        expected[allowed] = logits[row, allowed]
        for token, value in bias.items():
            expected[token] += value
        for token in {*PROMPT, *answer}:
            expected[token] *= 1.5 if expected[token] < 0 else 1 / 1.5
        np.testing.assert_allclose(controlled[row], expected, rtol=1e-6)


def test_all_stop_ids_are_barred_before_min_len(logits: np.ndarray) -> None:
    controls = packed(stop_token_ids=range(10, 22), min_tokens=len(ANSWER) + 2)
    position = len(PROMPT) + len(ANSWER)
    places, drafts = jnp.arange(position, position + 4)[None], jnp.asarray([DRAFTS])
    early = one_row(min_len=position + 2)
    controlled = np.asarray(CONTROL(logits[None], places, drafts, early, controls))[0]
    for row in range(4):
        barred = np.flatnonzero(np.isinf(controlled[row])).tolist()
        assert barred == ([7, *range(10, 22)] if row < 2 else [])


def test_committed_drafts_count_as_they_did_in_the_chain_and_rejected_ones_never(
    logits: np.ndarray,
) -> None:
    options = {
        "repetition_penalty": 1.2,
        "frequency_penalty": 0.3,
        "presence_penalty": 0.1,
        "bad_words_ids": [[9, 1, 2, 4, 5], [1, 17], [9, 18], [2, 4, 19]],
    }
    controls = packed(**options)
    whole = chain(controls, logits)
    tokens = jnp.asarray([[*DRAFTS, 23]], jnp.int32)
    for committed in range(len(DRAFTS) + 1):
        counted = commit_tokens(controls, jnp.zeros(1, jnp.int32), tokens, jnp.array([committed]))
        row = chain(counted, logits[committed : committed + 1], drafts=[])[0]
        np.testing.assert_array_equal(row, whole[committed])
        again = packed(ANSWER + DRAFTS[:committed], **options)
        for mine, rebuilt in zip(jax.tree.leaves(counted), jax.tree.leaves(again), strict=True):
            np.testing.assert_array_equal(mine, rebuilt)


def test_a_reduced_vocabulary_gets_the_columns_of_its_tokens(logits: np.ndarray) -> None:
    controls = packed(
        logit_bias={2: 4.0, 5: 1.0},
        bad_words_ids=[[2, 13], [2, 4, 14], [6]],
        repetition_penalty=1.4,
        frequency_penalty=0.2,
    )
    whole = chain(controls, logits)
    ids = jnp.asarray([0, 2, 4, 5, 9, 13, 14, 23])
    reduced = CONTROL(
        logits[None][:, :, ids],
        jnp.zeros((1, 4), int),
        jnp.asarray([DRAFTS]),
        one_row(),
        controls,
        ids,
    )
    np.testing.assert_array_equal(np.asarray(reduced)[0], whole[:, ids])
    assert np.isinf(whole[:, ids]).any()


def test_a_row_without_options_keeps_its_logits(logits: np.ndarray) -> None:
    controls = replace(packed(logit_bias={1: 5.0}), enabled=jnp.zeros(1, bool))
    np.testing.assert_array_equal(chain(controls, logits), logits)
