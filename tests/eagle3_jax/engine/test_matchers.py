"""Matchers of triggered grammars and thinking budgets, over a form that only notes what it gets."""

import math
from collections.abc import Sequence

import numpy as np
import pytest

from eagle3_jax.engine.grammars.pieces import PiecesMatcher
from eagle3_jax.engine.grammars.thinking import ThinkingMatcher
from eagle3_jax.sampling.thinking import ThinkingBudget
from eagle3_jax.sampling.token_mask import ALL_ALLOWED, open_masks

FIRST, LAST, BEGIN, OTHER, END = 1, 2, 3, 4, 31


class Form:
    """Allows no token and counts restarts."""

    terminated, free_tokens = False, 0

    def __init__(self) -> None:
        self.restarts, self.committed = 0, list[int]()

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        masks[:] = 0
        return list(draft_ids)

    def commit(self, token: int) -> None:
        self.committed.append(token)

    def restart(self) -> None:
        self.restarts += 1


def open_rows(masks: np.ndarray) -> list[int]:
    return [row for row, mask in enumerate(masks) if (mask == ALL_ALLOWED).all()]


def test_a_form_holds_from_its_first_token_to_its_last_each_time_from_its_start() -> None:
    form = Form()
    matcher, masks = PiecesMatcher(form, FIRST, LAST), open_masks(64, 5)
    for token in (OTHER, FIRST, OTHER):
        assert matcher.free_tokens == (0 if FIRST in form.committed else math.inf)
        matcher.commit(token)
    assert matcher.fill(masks, [OTHER, LAST, OTHER, OTHER]) == [OTHER, LAST, OTHER, OTHER]
    assert open_rows(masks) == [2, 3, 4]
    for token in (LAST, OTHER, FIRST):
        matcher.commit(token)
    assert (form.committed, form.restarts) == ([FIRST, OTHER, LAST, FIRST], 2)


@pytest.mark.parametrize(("committed", "row"), [([], 2), ([OTHER], 1), ([OTHER] * 2, 0)])
def test_behind_the_budget_nothing_but_the_end_of_thinking_may_come(
    committed: list[int], row: int
) -> None:
    matcher = ThinkingMatcher(ThinkingBudget(2, (END, LAST)), None)
    for token in committed:
        matcher.commit(token)
    assert matcher.free_tokens == row
    masks, drafts = open_masks(64, 4), [OTHER] * 3
    drafts[row] = END
    assert matcher.fill(masks, [OTHER] * 3) == drafts
    assert open_rows(masks) == [other for other in range(4) if other != row]
    assert masks[row].tolist() == [1 << END, 0]


def test_thinking_that_has_ended_or_never_began_has_no_budget() -> None:
    for begins, token in ((None, END), (None, LAST), (BEGIN, OTHER)):
        matcher = ThinkingMatcher(ThinkingBudget(2, (END, LAST), begins), None)
        matcher.commit(token)
        assert matcher.free_tokens == math.inf
        matcher.restart()
        matcher.commit(OTHER if begins is None else BEGIN)
        assert matcher.free_tokens == (1 if begins is None else 2)
