"""Answers of which only pieces have a form, such as calls of tools in free text."""

import math
from collections.abc import Sequence

import numpy as np

from eagle3_jax.engine.grammars.interface import Matcher
from eagle3_jax.sampling.token_mask import ALL_ALLOWED


class PiecesMatcher:
    """See Matcher. A piece begins with one id, wherever the model chooses it, and ends with
    another, with which its form ends; the devices pause behind the first."""

    terminated = False

    def __init__(self, form: Matcher, first: int, last: int) -> None:
        self._form, self._first, self._last = form, first, last
        self._inside = False

    @property
    def free_tokens(self) -> float:
        """See Matcher."""
        return 0 if self._inside else math.inf

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        """See Matcher. Behind the draft that ends a piece all may come again."""
        if not self._inside:
            return list(draft_ids)
        drafts = self._form.fill(masks, draft_ids)
        if self._last in drafts:
            masks[drafts.index(self._last) + 1 :] = ALL_ALLOWED
        return drafts

    def commit(self, token: int) -> None:
        """See Matcher."""
        if token == self._first and not self._inside:
            self._inside = True
            self._form.restart()
        if self._inside:
            self._form.commit(token)
            self._inside = token != self._last

    def restart(self) -> None:
        """See Matcher."""
        self._inside = False
