"""The small pair's engine on a CPU with interpreted GPU kernels, and the comparison's parts."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from eagle3_jax.sampling.sampler import gumbel, process_logits
from eagle3_jax.speculative.method import Variant
from eagle3_jax.speculative.propose import propose
from eagle3_jax.speculative.round_state import read_batch
from eagle3_tools.amdgpu.rounds.round_program import PairProgram, Run, engine_on, pair_programs
from eagle3_tools.amdgpu.rounds.small_pair import ENGINE, FORMATS, SmallPair, small_pair
from eagle3_tools.amdgpu.rounds.transcript import (
    Held,
    Transcript,
    cpu_transcript,
    largest_state_error,
    play,
    state_errors,
    token_problems,
)
from pallas_kernels import gpu

pytestmark = pytest.mark.long
ROUNDS = 3
STATE_TOLERANCE = {"bf16": 1e-2, "mxfp4": 6e-2}
"""Two roundings to bfloat16 (2^-8) in a row; some MXFP4 and FP8 rows round to the next code."""
CLEAR = 0.3
"""Least margin of scores: logits of size 8 are rounded to 1/32."""


@cache
def expected(format: str) -> Transcript:
    return cpu_transcript(small_pair(format), ROUNDS)


def draft_margins(pair: SmallPair, held: Held) -> np.ndarray:
    """Return each draft score's margin over the next one, noise included: float32 [batch, k]."""
    draft, logits = nnx.clone(pair.draft), list[jax.Array]()

    def kept(state: jax.Array) -> jax.Array:
        logits.append(pair.draft.logits(state))
        return logits[-1]

    draft.logits = kept
    slots, table = jnp.asarray(held.slots), jnp.asarray(held.table)
    before = jax.tree.map(jnp.asarray, held.state)
    batch = read_batch(before, slots, table, Variant.LEAN)
    rows, k = batch.rows, ENGINE.num_speculative_tokens
    propose(draft, batch, before.draft_pools, k)
    scores = jnp.concatenate(logits, axis=1)
    positions = rows.seq_lens[:, None] + 1 + jnp.arange(k)
    noise = gumbel(rows.options.seed[:, None], positions, jnp.arange(scores.shape[-1]))
    sampled = rows.options.temperature[:, None, None] > 0
    noisy = process_logits(scores, positions, rows.options) + jnp.where(sampled, noise, 0)
    best = jax.lax.top_k(noisy, 2)[0]
    return np.asarray(best[..., 0] - best[..., 1])


@pytest.mark.parametrize("format", FORMATS)
def test_rounds_accept_no_some_and_all_drafts_for_clear_reasons(format: str) -> None:
    pair, transcript = small_pair(format), expected(format)
    assert set(transcript.accepted.flat) == {0, 1, 2, 3}
    used = transcript.accepted.shape[1]
    assert min(draft_margins(pair, held)[:used].min() for held in transcript.held) > CLEAR


def interpreted(one: PairProgram) -> Run:
    """Compile the program for this CPU, with the GPU's kernels in interpret mode."""
    given = one.source
    tree = jax.tree.structure(given.shapes)

    def flat(*leaves: jax.Array) -> list[jax.Array]:
        return jax.tree.leaves(given.function(*jax.tree.unflatten(tree, leaves)))

    with gpu.assume(given.arch):
        compiled = jax.jit(flat).lower(*jax.tree.leaves(given.shapes)).compile()

    def run(leaves: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [np.asarray(result) for result in compiled(*leaves)]

    return run


@pytest.mark.parametrize(("format", "arch"), [("bf16", "gfx950"), ("mxfp4", "gfx942")])
def test_the_kernels_of_gpus_say_what_the_cpu_engine_says(format: str, arch: str) -> None:
    pair = small_pair(format)
    runs = {one: interpreted(one) for one in pair_programs(pair, arch)}
    found = play(engine_on(pair, arch, runs), ROUNDS)
    assert token_problems(expected(format), found) == []
    assert largest_state_error(expected(format), found) < STATE_TOLERANCE[format]


@pytest.mark.parametrize("column", [1, -2, -1], ids=["token", "accepted", "verified"])
def test_another_token_or_count_of_a_request_is_different(column: int) -> None:
    transcript = expected("bf16")
    reports = transcript.reports.copy()
    reports[-1, 1, column] -= 1
    (problem,) = token_problems(transcript, replace(transcript, reports=reports))
    assert problem.startswith(f"request 1: round {ROUNDS - 1} reports")


def test_one_wrong_row_in_a_pool_shows_in_its_error_alone() -> None:
    held = expected("bf16").held[-1]
    assert set(state_errors(held, held).values()) == {0.0}
    page, state = held.table[1, 0], jax.tree.map(np.array, held.state)
    state.target_pools[1][page, 3] *= 2
    errors = state_errors(held, replace(held, state=state))
    assert errors.pop("target pool 1") > 0.05
    assert set(errors.values()) == {0.0}


def test_rows_that_no_pass_reads_again_do_not_count() -> None:
    held = expected("bf16").held[-1]
    state = jax.tree.map(np.array, held.state)
    for pool in (*state.target_pools, *state.draft_pools):
        pool[0] = 1
        pool[held.table[1, -1]] = 1
    assert set(state_errors(held, replace(held, state=state)).values()) == {0.0}
