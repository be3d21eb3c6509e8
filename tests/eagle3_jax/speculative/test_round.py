"""Commits of a round, its rows in the caches, and the rows that it must not read."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driving import sizes
from lab import OPTIONS, PAGES, PROMPTS, Lab, one_row, prefilled, run_rounds, true_rows

from eagle3_jax.cache import rows_and_scale
from eagle3_jax.layers import moe
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.method import SpeculationMethod, Widths
from eagle3_jax.speculative.propose import Drafts
from eagle3_jax.speculative.round import propose_round, verify_round
from eagle3_jax.speculative.state import DecodeState
from pallas_kernels import moe_mlp

K = 3
both_attentions = pytest.mark.parametrize("draft", ["grouped", "latent"], indirect=True)


@pytest.fixture
def lab(target: Target, draft: Eagle3Draft) -> Lab:
    return prefilled(target, draft, sizes(K))


@both_attentions
def test_after_rounds_both_caches_hold_true_rows(lab: Lab) -> None:
    """Draft rows of accepted positions come from the target's features, not from draft steps.

    The rows committed last are still to be overwritten by the next round's first pass.
    """
    tokens, accepted = run_rounds(lab, 4)
    assert sum(map(sum, accepted)) >= 4
    for slot in range(4):
        known = tokens[slot]
        settled = len(known) - 1 - (accepted[slot][-1] + 1)
        target_rows, draft_rows = true_rows(lab, known[:-1])
        np.testing.assert_allclose(
            lab.target_rows(slot, len(known) - 1), target_rows, rtol=1e-3, atol=1e-4
        )
        np.testing.assert_allclose(
            lab.draft_rows(slot, settled), draft_rows[:, :settled], rtol=1e-3, atol=1e-4
        )


@both_attentions
def test_a_round_touches_its_own_pages_and_scratch_alone(lab: Lab) -> None:
    before = lab.snapshot()
    lab.round([0, 3])
    after = lab.snapshot()
    others = sorted(set(range(1, 28)) - set(PAGES[0]) - set(PAGES[3]))
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        if old.shape[0] == 28:
            np.testing.assert_array_equal(old[others], new[others])
        else:
            np.testing.assert_array_equal(old[[1, 2, 4]], new[[1, 2, 4]])


def test_rows_past_the_valid_drafts_are_not_written(target: Target, draft: Eagle3Draft) -> None:
    """They repeat the last valid position, whose row stays that of its own token."""
    lab = Lab(target, draft, sizes(K))
    tokens = [*PROMPTS[1], *lab.prefill(1, PROMPTS[1], one_row(), num_drafts=0)[:1]]
    lab.round([1])
    expected, _ = true_rows(lab, tokens)
    np.testing.assert_allclose(lab.target_rows(1, len(tokens)), expected, rtol=1e-3, atol=1e-4)


def test_rows_past_the_valid_drafts_choose_the_experts_of_the_last_valid_row(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[np.ndarray] = []

    def record(x: jax.Array, logits: jax.Array, *inputs: Any, **more: Any) -> jax.Array:
        jax.debug.callback(seen.append, logits)
        return moe_mlp(x, logits, *inputs, **more)

    monkeypatch.setattr(moe, "moe_mlp", record)
    table = np.zeros((4, lab.config.pages_per_seq), np.int32)
    table[:, :6] = [PAGES[slot] for slot in range(4)]
    limits, batch = jnp.arange(4), (jnp.arange(4), jnp.asarray(table))
    drafts = Drafts(jnp.arange(4 * K, dtype=jnp.int32).reshape(4, K))
    verify_round(lab.target, lab.pair.aux_layer_ids, lab.state, *batch, drafts, limits=limits)
    jax.effects_barrier()
    last = np.minimum(np.arange(K + 1), np.arange(4)[:, None])
    for logits in seen:
        rows = np.asarray(logits).reshape(4, K + 1, -1)
        repeated = np.take_along_axis(rows, last[..., None], axis=1)
        np.testing.assert_allclose(rows, repeated, rtol=1e-4, atol=1e-5)
    assert seen


def test_a_finished_row_commits_nothing_and_changes_nothing(lab: Lab) -> None:
    ended = np.array([False, True, False, True, True])
    lab.edit(lambda s: replace(s, slots=replace(s.slots, finished=jnp.asarray(ended))))
    before = lab.snapshot()
    reports = lab.round(range(4))
    after = lab.snapshot()
    assert reports[1, K + 1 :].tolist() == reports[3, K + 1 :].tolist() == [0, 0]
    assert (reports[[0, 2], K + 1] > 0).all()
    for old, new in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        kept = [*PAGES[1], *PAGES[3]] if old.shape[0] == 28 else [1, 3, 4]
        np.testing.assert_array_equal(old[kept], new[kept])


def test_greedy_drafts_are_those_of_temperature_zero(lab: Lab) -> None:
    table = np.zeros((4, lab.config.pages_per_seq), np.int32)
    table[:, :6] = [PAGES[slot] for slot in range(4)]

    def drafted(state: DecodeState, *, greedy: bool = False) -> list[list[int]]:
        method = SpeculationMethod(greedy_drafts=greedy)
        inputs = state, jnp.arange(4), jnp.asarray(table)
        _, drafts = propose_round(lab.draft, *inputs, method=method)
        assert isinstance(drafts, Drafts)
        return drafts.ids.tolist()

    slots = lab.state.slots
    cold = replace(slots.options, temperature=jnp.zeros_like(slots.options.temperature))
    best = drafted(replace(lab.state, slots=replace(slots, options=cold)))
    assert drafted(lab.state, greedy=True) == best != drafted(lab.state)


@pytest.mark.parametrize("room", range(1, 8))
def test_no_token_passes_the_length_limit(
    lab: Lab, target: Target, draft: Eagle3Draft, room: int
) -> None:
    """Tokens are those of a longer answer; drafts shrink with the room; no row past the limit."""
    free, _ = run_rounds(lab, 6)
    capped = Lab(target, draft, sizes(K))
    limit = len(PROMPTS[2]) + room
    capped.prefill(2, PROMPTS[2], OPTIONS[2], max_len=limit)
    tokens = [*PROMPTS[2], int(capped.snapshot().slots.verified_tokens[2, 0])]
    for _ in range(room):
        report = capped.round([2])[0]
        left = limit - len(tokens)
        assert report[K + 2] == max(0, min(K, left - 1))
        tokens += report[: report[K + 1]].tolist()
    assert tokens == free[2][:limit]
    assert capped.snapshot().slots.finished[2]
    for pool in capped.snapshot().target_pools:
        rows = rows_and_scale(pool)[0][list(PAGES[2])].reshape(-1, pool.shape[-1])
        assert rows[: limit - 1].any(axis=1).all()
        assert not rows[limit:].any()


def test_a_round_of_no_drafts_leaves_draft_rows_as_true_as_a_prefill(
    target: Target, draft: Eagle3Draft
) -> None:
    """Rounds of k = 2, 0, 0, 1, 0, 2: every change of width, up and down."""
    lab = Lab(target, draft, sizes(2))
    tokens = [5, 9, 3, 7]
    tokens += lab.prefill(0, tokens, one_row())[:1]
    for drafts, rows in ((2, 3), (0, 3), (0, 1), (1, 3), (0, 3), (2, 3)):
        report = lab.round([0], Widths(drafts, rows))[0]
        assert len(report) == drafts + 3 and report[-1] == drafts
        tokens += report[: report[-2]].tolist()
    lab.round([0], Widths(0, 3))
    length = len(tokens) - 1
    target_rows, draft_rows = true_rows(lab, tokens)
    np.testing.assert_allclose(lab.target_rows(0, length), target_rows[:, :length], atol=1e-5)
    np.testing.assert_allclose(lab.draft_rows(0, length), draft_rows[:, :length], atol=1e-5)
