"""Matchers of requests besides llguidance's: triggered grammars and thinking budgets."""

import math
from collections.abc import Sequence

import numpy as np

from eagle3_jax.engine.grammars.interface import (
    NO_GRAMMARS,
    CompiledGrammar,
    GrammarCompiler,
    Matcher,
)
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.sampling.structured_outputs import ThinkingBudget
from eagle3_jax.sampling.token_mask import ALL_ALLOWED, allow_only


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
        if token == self._first and not self._inside:
            self._inside = True
            self._form.restart()
        if self._inside:
            self._form.commit(token)
            self._inside = token != self._last

    def restart(self) -> None:
        self._inside = False


class ThinkingMatcher:
    """See Matcher. After the budget only the end of thinking is allowed; else the form decides."""

    def __init__(self, budget: ThinkingBudget, form: Matcher | None) -> None:
        self._budget, self._form = budget, form
        self._begin()

    @property
    def terminated(self) -> bool:
        return self._form is not None and self._form.terminated

    @property
    def free_tokens(self) -> float:
        return self._left if self._form is None else min(self._left, self._form.free_tokens)

    def fill(self, masks: np.ndarray, draft_ids: Sequence[int]) -> list[int]:
        drafts, end = list(draft_ids), self._budget.ends[0]
        row = self._last_row(drafts)
        if row is not None and row < len(drafts):
            drafts[row] = end
        if self._form is not None:
            drafts = self._form.fill(masks, drafts)
        if row is not None:
            allow_only(masks[row], end)
        return drafts

    def commit(self, token: int) -> None:
        self._left, self._count = self._after(self._left, self._count, token), self._count + 1
        if self._form is not None:
            self._form.commit(token)

    def restart(self) -> None:
        self._begin()
        if self._form is not None:
            self._form.restart()

    def _begin(self) -> None:
        # The id that begins thinking does not count.
        self._left: float = self._budget.tokens + (self._budget.begins is not None)
        self._count = 0

    def _last_row(self, drafts: Sequence[int]) -> int | None:
        """Return the row after drafts that use up the budget, if they do."""
        left = self._left
        for row, draft in enumerate(drafts):
            if left == 0:
                return row
            left = self._after(left, self._count + row, draft)
        return None if left else len(drafts)

    def _after(self, left: float, index: int, token: int) -> float:
        """Return the budget left after the answer's token at `index`; infinity after thinking."""
        never = index == 0 and self._budget.begins not in (None, token)
        return math.inf if never or token in self._budget.ends else left - 1


def matcher_of(
    sampling: SamplingParams, grammar: CompiledGrammar | None, compiler: GrammarCompiler | None
) -> Matcher | None:
    """Return a request's matcher, None for free text; raise ValueError without grammars.

    Args:
        sampling: Options of the request.
        grammar: Its compiled grammar, if the caller has compiled it already.
        compiler: Compiles it otherwise; None without the extra `grammar`.
    """
    constraint, budget = sampling.structured_outputs, sampling.thinking_budget
    if constraint is None and budget is None:
        return None
    if compiler is None:
        raise ValueError(NO_GRAMMARS)
    form = constraint and (grammar or compiler.compile(constraint)).start()
    return form if budget is None else ThinkingMatcher(budget, form)
