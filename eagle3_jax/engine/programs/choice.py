"""Choice of the program that sequences need, and of their rows in it: equally many per replica."""

from collections import Counter
from collections.abc import Sequence as Rows

from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.program import Program, ProgramKind, has_argmax
from eagle3_jax.engine.sequence import Sequence


def largest_replica_batch(members: Rows[Sequence]) -> int:
    """Return the largest number of sequences on one replica."""
    return max(Counter(member.replica for member in members).values(), default=0)


def places(members: Rows[Sequence], batch: int) -> list[int]:
    """Return the row of each sequence in a program of `batch` rows per replica."""
    taken = Counter[int]()
    rows: list[int] = []
    for member in members:
        rows.append(member.replica * batch + taken[member.replica])
        taken[member.replica] += 1
    return rows


class ProgramChoice:
    """Chooses lean programs, full ones for options that need them, or argmax ones.

    Argmax programs run if kernels choose tokens and no option needs written logits.
    """

    def __init__(self, config: EngineConfig):
        self._config, self._has_argmax = config, has_argmax(config)

    def program_for(self, members: Rows[Sequence], drafts: int | None = None) -> Program:
        """Return the whole round of `drafts` drafts over these sequences.

        None stands for all k that an engine may choose, whose costs are measured together.
        """
        kind = ProgramKind.FULL_ROUND if self._needs_full(members) else ProgramKind.ROUND
        if self._can_argmax(members):
            kind = ProgramKind.ARGMAX_ROUND
        batch = self._config.bucket_for(largest_replica_batch(members))
        if drafts is not None and self._config.method.lookup:
            copying = sum(member.copies for member in members)
            return Program(kind, batch, self._config.lookup_widths(copying, len(members)))
        if drafts is None or not self._config.chooses_k:
            return Program(kind, batch)
        # The narrowest program that reads all rows of the last round.
        rows = 1 + max(member.last_drafts for member in members)
        fitting = (w for w in self._config.round_widths if w and w.drafts == drafts)
        return Program(kind, batch, next(w for w in fitting if w.first_rows >= rows))

    def prefill_for(self, chunks: Rows[ChunkPlan], *, masked: bool = False) -> Program:
        """Return the prefill of chunks, one per replica, which samples after last chunks.

        It may sample under masks. A full one leaves biases to later rounds, so it precedes argmax.
        """
        sampling = [chunk.sequence for chunk in chunks if chunk.last]
        if any(chunk.sequence.scores_prompt for chunk in chunks):
            return Program(ProgramKind.SCORING_PREFILL)
        if masked or self._needs_full(sampling):
            return Program(ProgramKind.FULL_PREFILL)
        return Program(
            ProgramKind.ARGMAX_PREFILL if self._can_argmax(sampling) else ProgramKind.PREFILL
        )

    def _needs_full(self, members: Rows[Sequence]) -> bool:
        return any(self._config.exact or member.needs_full for member in members)

    def _can_argmax(self, members: Rows[Sequence]) -> bool:
        return self._has_argmax and not any(member.needs_logits for member in members)
