"""Programs that have been dispatched and not been read."""

from typing import NamedTuple

from eagle3_jax.engine.adaptive.choose_k import ChosenK
from eagle3_jax.engine.programs.output import ProgramOutput
from eagle3_jax.engine.sequence import Sequence


class InFlight(NamedTuple):
    """A dispatched program whose output is not read yet.

    `members` are in the order of reports; a round makes `drafted` drafts for each. `timed` is a
    round's choice of k if the previous program was unread at its dispatch, so that the time between
    the two reads is the round's own.
    """

    output: ProgramOutput
    members: list[Sequence]
    is_round: bool
    drafted: int = 0
    timed: ChosenK | None = None
