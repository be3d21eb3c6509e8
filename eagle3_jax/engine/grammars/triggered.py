"""Triggered grammars: text is constrained only between two marker tokens, as for tool calls."""

import math
from collections.abc import Sequence

import numpy as np

from eagle3_jax.engine.grammars.interface import Matcher
from eagle3_jax.sampling.token_mask import ALL_ALLOWED


class TriggeredGrammar:
    """Matcher of a triggered grammar: only text between two marker tokens has a form.

    The model chooses the first marker, after which devices pause. See Matcher.
    """

    terminated = False

    def __init__(self, form: Matcher, first: int, last: int) -> None:
        self._form, self._first, self._last = form, first, last
        self._inside = False

    @property
    def free_tokens(self) -> float:
        """See Matcher."""
        return 0 if self._inside else math.inf

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        """See Matcher. After the draft that ends constrained text, everything is allowed."""
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
