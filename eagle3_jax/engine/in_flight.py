"""What has been dispatched to the device and not been read."""

from typing import NamedTuple

from eagle3_jax.engine.adaptive.choose_k import ChosenK
from eagle3_jax.engine.programs.output import ProgramOutput
from eagle3_jax.engine.sequence import Sequence


class InFlight(NamedTuple):
    """A dispatched program whose output is not read yet.

    members: whose reports it will put out, in their order.
    drafted: drafts that a round makes for each of them.
    timed: a round's choice of k, if the program before it was still unread when it was dispatched:
    the time between their two reads is then the round's own.
    """

    output: ProgramOutput
    members: list[Sequence]
    is_round: bool
    drafted: int = 0
    timed: ChosenK | None = None
