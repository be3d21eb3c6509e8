"""Static sizes of a round that may be narrower than the state: k' < k drafts.

The state has room for the k+1 rows of its widest round. A round of k' drafts verifies k'+1 rows and
leaves the rest empty. Its first pass reads as many rows as the previous round was wide.
"""

from typing import NamedTuple


class Widths(NamedTuple):
    """Sizes of a round in an engine that chooses k per round.

    `drafts` is k'. `first_rows` are the rows of the draft's first pass, at least 1 + the drafts of
    the widest previous round of its sequences (0 for a prefill).
    """

    drafts: int
    first_rows: int
