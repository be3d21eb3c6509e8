"""The static sizes of a round, which may be narrower than the state: k' < k drafts.

The state keeps room for the k+1 rows of its widest round. A round of k' drafts verifies k'+1 rows
and leaves the rest empty; what it reads of the round before is as wide as that round was.
"""

from typing import NamedTuple


class Widths(NamedTuple):
    """Sizes of a round of an engine that chooses k round by round.

    drafts: k', tokens it drafts. first_rows: rows of the draft's first pass, at least 1 + the
    drafts of the widest round that any of its sequences had last (a prefill counts as none).
    """

    drafts: int
    first_rows: int
