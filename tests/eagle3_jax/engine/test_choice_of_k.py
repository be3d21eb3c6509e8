"""Rounds of any k leave both caches true."""

import numpy as np
from driving import sizes
from lab import Lab, one_row, true_rows

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.speculative.widths import Widths


def test_a_round_of_no_drafts_leaves_draft_rows_as_true_as_a_prefill(
    target: Target, draft: Eagle3Draft
) -> None:
    """Rounds of k = 3, 0, 0, 1, 0, 2: every change of width, up and down."""
    lab = Lab(target, draft, sizes(3))
    tokens = [5, 9, 3, 7]
    tokens += lab.prefill(0, tokens, one_row())[:1]
    for drafts, rows in ((3, 4), (0, 4), (0, 1), (1, 4), (0, 4), (2, 4)):
        report = lab.round([0], Widths(drafts, rows))[0]
        assert len(report) == drafts + 3 and report[-1] == drafts
        tokens += report[: report[-2]].tolist()
    lab.round([0], Widths(0, 4))
    length = len(tokens) - 1
    target_rows, draft_rows = true_rows(lab, tokens)
    np.testing.assert_allclose(lab.target_rows(0, length), target_rows[:, :length], atol=1e-5)
    np.testing.assert_allclose(lab.draft_rows(0, length), draft_rows[:, :length], atol=1e-5)
