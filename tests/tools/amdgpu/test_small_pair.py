"""The small pair's engine on a CPU with interpreted GPU kernels, and the comparison's parts."""

from dataclasses import replace
from functools import cache
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from eagle3_tools.amdgpu.rounds.round_oracle import (
    Transcript,
    compare,
    cpu_transcript,
    draft_margins,
    play,
)
from eagle3_tools.amdgpu.rounds.round_program import PREFILL, engine_on, interpreted, pair_programs
from eagle3_tools.amdgpu.rounds.round_state import state_errors
from eagle3_tools.amdgpu.rounds.small_pair import ENGINE, FORMATS, SmallPair, small_pair

pytestmark = pytest.mark.long
ROUNDS = 3
STATE_TOLERANCE = {"bf16": 1e-2, "mxfp4": 6e-2}
"""Two roundings to bfloat16 (2^-8) in a row; some MXFP4 and FP8 rows round to the next code."""
CLEAR = 0.3
"""Least margin of scores: logits of size 8 are rounded to 1/32."""


@cache
def expected(format: str) -> Transcript:
    return cpu_transcript(small_pair(format), ROUNDS)


@pytest.mark.parametrize("format", FORMATS)
def test_rounds_accept_no_some_and_all_drafts_for_clear_reasons(format: str) -> None:
    pair, transcript = small_pair(format), expected(format)
    assert set(transcript.accepted.flat) == {0, 1, 2, 3}
    used = transcript.accepted.shape[1]
    assert min(draft_margins(pair, held)[:used].min() for held in transcript.held) > CLEAR


@pytest.mark.parametrize(("format", "arch"), [("bf16", "gfx950"), ("mxfp4", "gfx942")])
def test_the_kernels_of_gpus_say_what_the_cpu_engine_says(format: str, arch: str) -> None:
    pair = small_pair(format)
    runs = {one.program: interpreted(one) for one in pair_programs(pair, arch)}
    found = play(engine_on(pair, arch, runs), ROUNDS)
    assert [verdict.kind for verdict in compare(pair, expected(format), found)] == ["equal"] * 3
    for ours, theirs in zip(expected(format).held, found.held, strict=True):
        assert max(state_errors(ours, theirs).values()) < STATE_TOLERANCE[format]


def with_report(transcript: Transcript, column: int, value: int) -> Transcript:
    """Change the last report of the second request, which accepts all its drafts."""
    reports = transcript.reports.copy()
    reports[-1, 1, column] = value
    return replace(transcript, reports=reports)


def with_twin(pair: SmallPair, token: int, twin: int) -> SmallPair:
    """Return a pair whose heads give these two tokens equal scores."""
    models = nnx.clone(pair.target), nnx.clone(pair.draft)
    for model in models:
        kernel: Any = model.lm_head.kernel
        head = kernel.get_value()
        kernel.set_value(head.at[:, twin].set(head[:, token]))
    return SmallPair(*models)


def test_another_token_is_different_unless_the_target_ties() -> None:
    pair, transcript = small_pair(), expected("bf16")
    token = int(transcript.reports[-1, 1, 1])
    twin = (token + 1) % pair.target.config.vocab_size
    found = with_report(transcript, 1, twin)
    assert [v.kind for v in compare(pair, transcript, found)] == ["equal", "different", "equal"]
    tied = with_twin(pair, token, twin)
    assert [v.kind for v in compare(tied, transcript, found)] == ["equal", "tie", "equal"]


def test_fewer_accepted_drafts_are_different_unless_the_draft_ties() -> None:
    pair, transcript = small_pair(), expected("bf16")
    token = int(transcript.reports[-1, 1, 1])
    twin = (token + 1) % pair.target.config.vocab_size
    # One draft token is accepted, the second is not.
    found = with_report(transcript, -2, 2)
    assert [v.kind for v in compare(pair, transcript, found)] == ["equal", "different", "equal"]
    tied = with_twin(pair, token, twin)
    assert [v.kind for v in compare(tied, transcript, found)] == ["equal", "tie", "equal"]


def test_other_numbers_of_verified_drafts_are_never_a_tie() -> None:
    pair, transcript = small_pair(), expected("bf16")
    found = with_report(transcript, -1, 2)
    assert compare(pair, transcript, found)[1].kind == "different"


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


def test_results_of_another_shape_are_refused() -> None:
    prefill, _ = pair_programs(small_pair(), "gfx950")
    shapes = jax.tree.leaves(prefill.results)
    results: list[np.ndarray] = [np.zeros(shape.shape, shape.dtype) for shape in shapes]
    state, report, logprobs = prefill.returned(results)
    assert (report.shape, logprobs) == ((1, 2), None)
    assert state.slots.seq_lens.shape == (ENGINE.max_num_seqs + 1,)
    results[0] = results[0].astype(np.float32)
    with pytest.raises(ValueError, match=rf"result 0 of {PREFILL}: expected bfloat16.*got float32"):
        prefill.returned(results)


def test_what_is_donated_is_the_state() -> None:
    _, round = pair_programs(small_pair(), "gfx950")
    leaves = jax.tree.leaves(round.shapes)
    donated = [leaves[place] for place in round.donated]
    assert donated == jax.tree.leaves(round.results[0])
