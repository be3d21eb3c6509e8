"""Decisions from logits whose columns lie on 2 or 8 devices are those of one device.

In every test each device gets the same bits, and they are those of the whole array; sums of floats
are equal up to rounding.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from host_devices import AXES, on_devices
from sampling_rows import sampling_rows
from slot_rows import decoding_rows
from sweeps import sweep

from eagle3_jax.collectives import Axis, all_columns
from eagle3_jax.sampling.logprobs import sampled_logprobs
from eagle3_jax.sampling.rows import SamplingRows, lean_rows
from eagle3_jax.sampling.sampler import (
    NO_CANDIDATE,
    NOT_FINITE,
    nan_if_nonfinite,
    probabilities,
    process_logits,
    sample,
)
from eagle3_jax.sampling.token_mask import mask_logits, open_masks
from eagle3_jax.speculative.logit_control_rows import LogitControls, empty_controls
from eagle3_jax.speculative.logit_controls import control_logits
from eagle3_jax.speculative.propose import Drafts, draw_with_probs
from eagle3_jax.speculative.propose_tree import child_log_probs
from eagle3_jax.speculative.rejection import verify_by_rejection
from eagle3_jax.speculative.synthetic import verify_synthetic
from eagle3_jax.speculative.verify import verify
from eagle3_jax.vocabulary import best_pairs, column_ids

BATCH, ROWS, VOCAB = 40, 3, 104
"""13 columns on each of 8 devices: fewer than logprobs, no power of two, no multiple of a word."""
LOGITS = 2
"""The dimension along which logits are split."""


def split_and_whole(
    function: Callable[..., Any], devices: int, split: Sequence[int | None], *arguments: Any
) -> tuple[Any, Any]:
    """The function's outputs on so many devices, which all have the same bits, and on one."""
    copies = on_devices(devices, partial(function, AXES), split)(*arguments)
    for copy in jax.tree.leaves(jax.tree.map(np.asarray, copies)):
        assert (copy[:1].tobytes() * devices) == copy.tobytes()
    whole = jax.jit(partial(function, None))(*arguments)
    return jax.tree.map(lambda x: np.asarray(x)[0], copies), jax.tree.map(np.asarray, whole)


def assert_same(found: Any, expected: Any, rounding: float = 0.0) -> None:
    """Integers and infinities are equal, other floats as near as a sum's order allows."""
    for mine, whole in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        if whole.dtype == np.float32:
            np.testing.assert_allclose(mine, whole, rtol=rounding, atol=rounding)
        else:
            np.testing.assert_array_equal(mine, whole)


def rng_rows(seed: int) -> tuple[jax.Array, jax.Array, SamplingRows]:
    """Logits with ties, positions, and options of every kind, greedy rows among them."""
    rng = np.random.default_rng(seed)
    logits = (rng.normal(size=(BATCH, ROWS, VOCAB)) * 2.5).astype(np.float32)
    logits[::2] = np.round(logits[::2])
    rows = sampling_rows(
        BATCH,
        stop_ids=(3, 50, 103),
        temperature=rng.choice([0.0, 0.3, 0.7, 1.0, 2.0], BATCH),
        top_p=rng.choice([1e-30, 0.5, 0.9, 0.99, 1.0], BATCH),
        top_k=rng.choice([0, 1, 2, 10, 50, VOCAB, VOCAB + 5], BATCH),
        min_p=rng.choice([0.0, 0.0, 0.01, 0.3], BATCH),
        typical_p=rng.choice([0.2, 0.9, 1.0], BATCH),
        min_len=rng.choice([0, 20], BATCH),
        seed=rng.integers(0, 2**32, (BATCH, 2)),
    )
    return jnp.asarray(logits), jnp.asarray(rng.integers(0, 40, (BATCH, ROWS)), jnp.int32), rows


def broken(logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Logits with NaN or infinity on one device or more, and what bars some or all columns."""
    bad, barred = np.array(logits), np.zeros(logits.shape, bool)
    bad[7, 0, 80], bad[8, 1, 12], bad[9, 2, 102], bad[10, :, 13:] = np.nan, np.inf, np.nan, -np.inf
    barred[5, :, 7:90], barred[6, :, :103], barred[11], barred[7, :, :103] = True, True, True, True
    return jnp.asarray(bad), jnp.asarray(barred)


@pytest.mark.parametrize("devices", sweep([2, 8], [8]))
def test_tokens_scores_and_distributions_are_those_of_the_whole_vocabulary(devices: int) -> None:
    def decide(axis: Axis, logits: jax.Array, barred: jax.Array, *rest: Any) -> Any:
        positions, rows = rest
        logits = jnp.where(barred, -jnp.inf, nan_if_nonfinite(logits, axis))
        scores = process_logits(logits, positions, rows, axis=axis)
        distribution = probabilities(scores, rows.temperature, axis)
        whole = partial(all_columns, axis=axis)
        return (sample(logits, positions, rows, axis=axis), whole(scores)), whole(distribution)

    logits, positions, rows = rng_rows(0)
    inputs = *broken(logits), positions, rows
    found, expected = split_and_whole(decide, devices, (LOGITS, LOGITS, None, None), *inputs)
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1], rounding=3e-7)
    tokens = expected[0][0]
    assert tokens[7, 0] == tokens[8, 1] == tokens[9, 2] == NOT_FINITE
    assert (tokens[10] == NOT_FINITE).all() and (tokens[11] == NO_CANDIDATE).all()
    assert (tokens[5:7] >= 0).all() and len(np.unique(tokens)) > VOCAB // 3


def test_controls_masks_and_logprobs_are_those_of_the_whole_vocabulary() -> None:
    def decide(axis: Axis, logits: jax.Array, positions: jax.Array, *rest: Any) -> Any:
        rows, controls, drafts, masks = rest
        controlled = control_logits(logits, positions, drafts, rows, controls, axis=axis)
        controlled = mask_logits(controlled, masks, axis=axis)
        tokens = sample(controlled, positions, rows, axis=axis)
        processed = controls.processed_logprobs
        logprobs = sampled_logprobs(logits, controlled, positions, tokens, rows, processed, axis)
        ranks = tokens, logprobs.rank, logprobs.best_ids, all_columns(controlled, axis)
        return ranks, (logprobs.chosen, logprobs.best)

    logits, positions, rows = rng_rows(1)
    rng = np.random.default_rng(2)
    drafts = jnp.asarray(rng.integers(0, VOCAB, (BATCH, ROWS - 1)), jnp.int32)
    masks = rng.integers(0, 2**32, open_masks(VOCAB, BATCH, ROWS).shape, dtype=np.uint32)
    masks[3, 1] = 0
    inputs = logits, positions, rows, token_controls(rng), drafts, jnp.asarray(masks)
    found, expected = split_and_whole(decide, 8, (LOGITS, *[None] * 5), *inputs)
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1], rounding=3e-6)
    assert expected[0][0][3, 1] == NO_CANDIDATE


def token_controls(rng: np.random.Generator) -> LogitControls:
    """Rows with every option that looks at ids, the last one without any."""
    empty = empty_controls(BATCH, VOCAB)
    bias = rng.choice([0.0, 0.0, 1.5, -np.inf], (BATCH, VOCAB)).astype(np.float32)
    words = np.full(empty.bad_words.shape, -1, np.int32)
    words[:, :9, :] = -2
    words[:, :9, -1] = rng.integers(0, VOCAB, (BATCH, 9))
    stops = np.full(empty.stop_ids.shape, -1, np.int32)
    stops[:, :5] = rng.integers(0, VOCAB, (BATCH, 5))
    return replace(
        empty,
        enabled=jnp.arange(BATCH) < BATCH - 1,
        bias=jnp.asarray(bias),
        bad_words=jnp.asarray(words),
        stop_ids=jnp.asarray(stops),
        repetition=jnp.asarray(rng.choice([0.7, 1.0, 1.4], BATCH), jnp.float32),
        presence=jnp.asarray(rng.choice([0.0, 0.5], BATCH), jnp.float32),
        frequency=jnp.asarray(rng.choice([0.0, -0.3], BATCH), jnp.float32),
        in_prompt=jnp.asarray(rng.random((BATCH, VOCAB)) < 0.2),
        counts=jnp.asarray(rng.poisson(0.3, (BATCH, VOCAB)), jnp.int32),
        processed_logprobs=jnp.asarray(rng.random(BATCH) < 0.5),
    )


@pytest.mark.parametrize(
    ("devices", "draft_split", "reduced"),
    sweep([(2, True, True), (8, False, True), (8, True, False)], [(2, True, True)]),
)
def test_drafts_are_drawn_and_verified_as_on_one_device(
    devices: int, draft_split: bool, reduced: bool
) -> None:
    def decide(axis: Axis, logits: jax.Array, proposed: jax.Array, *rest: Any) -> Any:
        ids, state = (rest[0] if reduced else None), rest[1]
        draft_axis = axis if draft_split else None
        places = 11 + jnp.arange(ROWS - 1)[None].repeat(BATCH, 0)
        drawn = draw_with_probs(
            proposed, places, state.seq_lens, state.options, ids, VOCAB, draft_axis, axis
        )
        drafts = Drafts(*drawn)
        decided = (
            verify_by_rejection(logits, drafts, state, axis),
            verify_by_rejection(logits, drafts, state, axis, block=True),
            verify(logits, drafts.ids, state, axis),
            verify_synthetic(logits, drafts.ids, state, (0.8, 0.5), axis),
        )
        return (drafts.ids, decided), all_columns(drawn[1], axis)

    logits, _, rows = rng_rows(3)
    at = np.full(BATCH, 10)
    rng = np.random.default_rng(4)
    ids = np.sort(rng.choice(VOCAB, 40, replace=False)) if reduced else np.arange(VOCAB)
    proposed = logits[:, :-1, ids] + jnp.asarray(rng.normal(size=(BATCH, 1, 1)), jnp.float32)
    noise = rng.normal(size=proposed.shape) * 0.7
    inputs = (
        logits,
        proposed + jnp.asarray(noise, jnp.float32),
        jnp.asarray(ids),
        decoding_rows(rows, at, at + 89, ROWS - 1),
    )
    split = (LOGITS, LOGITS, 0, None) if draft_split else (LOGITS, None, None, None)
    found, expected = split_and_whole(decide, devices, split, *inputs)
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1], rounding=3e-7)
    for result in expected[0][1]:
        assert set(result.num_accepted) == {0, 1, 2}


def test_the_best_children_of_a_tree_are_those_of_the_whole_vocabulary() -> None:
    def decide(axis: Axis, logits: jax.Array, barred: jax.Array, *rest: Any) -> Any:
        logits = jnp.where(barred, -jnp.inf, nan_if_nonfinite(logits, axis))
        scores = child_log_probs(logits, *rest, axis=axis)
        best, columns = jax.lax.top_k(scores, min(20, logits.shape[-1]))
        ids = column_ids(logits.shape[-1], axis=axis)[columns]
        best, tokens = best_pairs(best, ids, 20, axis)
        return tokens, best

    logits, positions, rows = rng_rows(5)
    inputs = *broken(logits), positions, rows
    found, expected = split_and_whole(decide, 8, (LOGITS, LOGITS, None, None), *inputs)
    assert_same(found[0], expected[0])
    assert_same(found[1], expected[1], rounding=3e-6)


def test_a_sampled_token_takes_five_collectives_and_no_gather_of_logits() -> None:
    logits, positions, rows = rng_rows(6)
    program = on_devices(8, partial(_sample, AXES), (LOGITS, None, None))
    text = program.lower(logits, positions, lean_rows(rows)).compile().as_text() or ""
    found = re.findall(r"= \(?(\w+)\[([\d,]*)\]\S* (all-\w+|collective-\w+|reduce-scatter)\(", text)
    told_of = {(kind, dtype, math.prod(map(int, dims.split(",")))) for dtype, dims, kind in found}
    tokens = BATCH * ROWS
    assert told_of == {
        ("all-gather", "f32", 8 * tokens),  # the best of each row
        ("all-reduce", "f32", 15 * tokens),  # twice, in loops of 8 steps: counts, then masses
        ("all-reduce", "f32", tokens),  # the mass
        ("all-gather", "s32", 2 * 8 * tokens),  # the (score, id) pair
    }
    assert len(found) == 5


def _sample(axis: Axis, *inputs: Any) -> jax.Array:
    return sample(*inputs, axis=axis)
