"""Which program sequences need: decided here alone, for who runs it and who times it."""

from collections.abc import Sequence as Rows

from eagle3_jax.engine.chunk_plan import ChunkPlan
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.programs.placing import most_together
from eagle3_jax.engine.programs.program import Program, ProgramKind, has_argmax
from eagle3_jax.engine.sequence import Sequence


class ProgramChoice:
    """Lean programs where they will do, full ones where an option of one sequence needs them, and
    argmax ones where kernels choose tokens and nobody's options need written logits."""

    def __init__(self, config: EngineConfig):
        self._config, self._has_argmax = config, has_argmax(config)

    def program_for(self, members: Rows[Sequence], drafts: int | None = None) -> Program:
        """The whole round of so many drafts over these sequences; None stands for all that an
        engine may choose: their costs are measured by what is the same in them."""
        kind = ProgramKind.FULL_ROUND if self._needs_full(members) else ProgramKind.ROUND
        if self._can_argmax(members):
            kind = ProgramKind.ARGMAX_ROUND
        batch = self._config.bucket_for(most_together(members))
        if drafts is None or not self._config.chooses_k:
            return Program(kind, batch)
        # The narrowest one that reads all rows of the last round.
        rows = 1 + max(member.last_drafts for member in members)
        fitting = (w for w in self._config.round_widths if w and w.drafts == drafts)
        return Program(kind, batch, next(w for w in fitting if w.first_rows >= rows))

    def prefill_for(self, chunks: Rows[ChunkPlan], *, masked: bool = False) -> Program:
        """The prefill of chunks, one a replica: only a prompt's last one samples, and may do so
        under a mask. A full one leaves biases to the rounds that follow, so that it goes before
        argmax."""
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
