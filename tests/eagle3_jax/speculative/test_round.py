"""What a round commits, what it leaves in the caches, and what it may not look at."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from driving import sizes
from lab import PAGES, Lab, one_row, spoil, true_rows
from tiny import VOCAB

from eagle3_jax.cache import rows_and_scale
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.state import DecodeState

K = 3
PROMPTS = [[(17 * slot + 7 * i + 1) % VOCAB for i in range(3 + 2 * slot)] for slot in range(4)]
OPTIONS = [one_row(), one_row(0.6, seed=1), one_row(1.0, seed=2), one_row(1.0, seed=3)]
both_attentions = pytest.mark.parametrize("draft", ["grouped", "latent"], indirect=True)


@pytest.fixture
def lab(target: Target, draft: Eagle3Draft) -> Lab:
    """Four prefilled sequences of different lengths: one greedy, three sampled."""
    lab = Lab(target, draft, sizes(K))
    for slot, prompt in enumerate(PROMPTS):
        lab.prefill(slot, prompt, OPTIONS[slot])
    return lab


def run(
    lab: Lab, rounds: int, between: Callable[[DecodeState], DecodeState] | None = None
) -> tuple[list[list[int]], list[list[int]]]:
    """Rounds over all slots; returns each slot's tokens (prompt included) and accepted counts."""
    slots = lab.snapshot().slots
    tokens = [
        [*prompt, int(first)]
        for prompt, first in zip(PROMPTS, slots.verified_tokens[:, 0], strict=False)
    ]
    accepted: list[list[int]] = [[], [], [], []]
    for _ in range(rounds):
        if between:
            lab.edit(between)
        for slot, row in enumerate(lab.round(range(4))):
            committed = int(row[K + 1])
            tokens[slot] += row[:committed].tolist()
            accepted[slot].append(committed - 1)
    return tokens, accepted


@both_attentions
def test_after_rounds_both_caches_hold_true_rows(lab: Lab) -> None:
    """Draft rows of accepted positions come from the target's features, not from draft steps.

    The rows committed last are still to be overwritten by the next round's first pass.
    """
    tokens, accepted = run(lab, 4)
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
def test_nothing_stale_matters(lab: Lab, target: Target, draft: Eagle3Draft) -> None:
    """NaN in every row past the settled ones, in other pages, on scratch and in features of
    rejected rows; wrong ids in rejected rows."""
    expected = run(lab, 5)

    def poison(state: DecodeState) -> DecodeState:
        slots = state.slots
        lengths, accepted = np.array(slots.seq_lens), np.array(slots.num_accepted)
        known = {slot: int(lengths[slot]) for slot in range(4)}
        settled = {slot: int(lengths[slot] - accepted[slot] - 1) for slot in range(4)}
        stale = jnp.arange(K + 1) > slots.num_accepted[:, None]
        return replace(
            state,
            target_pools=tuple(spoil(pool, known) for pool in state.target_pools),
            draft_pools=tuple(spoil(pool, settled) for pool in state.draft_pools),
            slots=replace(
                slots,
                verified_tokens=jnp.where(stale, VOCAB - 1, slots.verified_tokens),
                aux_hidden=jnp.where(stale[..., None], jnp.nan, slots.aux_hidden),
            ),
        )

    other = Lab(target, draft, sizes(K))
    for slot, prompt in enumerate(PROMPTS):
        other.prefill(slot, prompt, OPTIONS[slot])
    assert run(other, 5, poison) == expected


@pytest.mark.optimised
def test_a_slots_bits_do_not_depend_on_its_neighbours(
    lab: Lab, target: Target, draft: Eagle3Draft
) -> None:
    run(lab, 3)
    alone = Lab(target, draft, sizes(K))
    alone.prefill(1, PROMPTS[1], OPTIONS[1])
    for _ in range(3):
        alone.round([1])
    length = int(alone.snapshot().slots.seq_lens[1])
    np.testing.assert_array_equal(lab.target_rows(1, length), alone.target_rows(1, length))


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


def test_committed_rows_stay_as_they_are(lab: Lab) -> None:
    length = len(PROMPTS[2])
    before = lab.target_rows(2, length)
    run(lab, 2)
    np.testing.assert_array_equal(lab.target_rows(2, length), before)


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


@pytest.mark.parametrize("room", range(1, 8))
def test_no_token_passes_the_length_limit(
    lab: Lab, target: Target, draft: Eagle3Draft, room: int
) -> None:
    """Tokens are those of a longer answer; drafts shrink with the room; no row past the limit."""
    free, _ = run(lab, 6)
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


def test_fewer_drafts_in_the_wide_program_give_the_same_tokens(
    target: Target, draft: Eagle3Draft
) -> None:
    """Slot i verifies i drafts of its three; slot 0 decodes plainly."""
    lab = Lab(target, draft, sizes(K))
    tokens: list[list[int]] = []
    for slot in range(4):
        lab.prefill(slot, PROMPTS[1], OPTIONS[1], num_drafts=slot)
        tokens.append([int(lab.snapshot().slots.verified_tokens[slot, 0])])
    accepted = np.zeros(4, int)
    for _ in range(8):
        reports = lab.round(range(4))
        np.testing.assert_array_less(reports[:, K + 2], np.arange(4) + 1)
        for slot, row in enumerate(reports):
            tokens[slot] += row[: row[K + 1]].tolist()
        accepted += np.maximum(reports[:, K + 1] - 1, 0)
    assert accepted[0] == 0 and accepted[3] > 1
    for row in tokens[1:]:
        shared = min(len(row), len(tokens[0]))
        assert row[:shared] == tokens[0][:shared]


def test_a_stop_id_inside_the_accepted_run_ends_the_row(
    lab: Lab, target: Target, draft: Eagle3Draft
) -> None:
    """The device flags it in the same round, and later rounds commit nothing."""
    tokens, accepted = run(lab, 6)
    slot, at = next(found for slot in range(4) for found in accepted_news(slot, tokens, accepted))
    stop = tokens[slot][at]
    stopped = Lab(target, draft, sizes(K))
    options = replace(OPTIONS[slot], stop_ids=one_row(stop_ids=[stop]).stop_ids)
    stopped.prefill(slot, PROMPTS[slot], options)
    reports = [stopped.round([slot])[0] for _ in range(7)]
    committed = [report[: report[K + 1]].tolist() for report in reports]
    last = next(index for index, row in enumerate(committed) if stop in row)
    assert committed[last].index(stop) < len(committed[last]) - 1
    assert not any(committed[last + 1 :])
    assert stopped.snapshot().slots.finished[slot]


def accepted_news(
    slot: int, tokens: list[list[int]], accepted: list[list[int]]
) -> Iterator[tuple[int, int]]:
    """(slot, index) of accepted drafts whose token the answer did not contain before."""
    start = len(PROMPTS[slot])
    first = start + 1
    for count in accepted[slot]:
        for index in range(first, first + count):
            if tokens[slot][index] not in tokens[slot][start:index]:
                yield slot, index
        first += count + 1


def test_without_drafts_the_drafts_cache_has_no_holes(target: Target, draft: Eagle3Draft) -> None:
    """k = 0 still runs the draft's first pass."""
    lab = Lab(target, draft, sizes(0))
    lab.prefill(0, PROMPTS[3], one_row())
    tokens = [*PROMPTS[3], int(lab.snapshot().slots.verified_tokens[0, 0])]
    for _ in range(6):
        tokens.append(int(lab.round([0])[0, 0]))
    _, draft_rows = true_rows(lab, tokens[:-1])
    settled = len(tokens) - 2
    np.testing.assert_allclose(
        lab.draft_rows(0, settled), draft_rows[:, :settled], rtol=1e-3, atol=1e-4
    )
