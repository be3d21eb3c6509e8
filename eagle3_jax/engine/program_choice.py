"""Which kind of program sequences need: decided here alone, for who runs it and who times it."""

from collections.abc import Sequence as Rows
from typing import NamedTuple

from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.program import Program, has_argmax
from eagle3_jax.engine.scheduler import ChunkPlan
from eagle3_jax.engine.sequence import Sequence


class Shape(NamedTuple):
    """What a round's cost depends on besides k: the compiled batch size, lean, full or argmax."""

    batch: int
    full: bool
    argmax: bool = False


class ProgramChoice:
    """Lean programs where they will do, full ones where an option of one sequence needs them, and
    argmax ones where kernels choose tokens and nobody's options need written logits."""

    def __init__(self, config: EngineConfig):
        self._config, self._has_argmax = config, has_argmax(config)

    def round(self, members: Rows[Sequence]) -> Shape:
        """Of a whole round over these sequences, whatever k it drafts."""
        argmax = self._can_argmax(members)
        full = not argmax and any(self._needs_full(member) for member in members)
        return Shape(self._config.bucket_for(len(members)), full, argmax)

    def prefill(self, chunk: ChunkPlan) -> Program:
        """Of one chunk: only a prompt's last one samples."""
        sequence, scores = chunk.sequence, chunk.sequence.scores_prompt
        full = scores or (chunk.last and self._needs_full(sequence))
        argmax = not full and self._can_argmax([sequence] if chunk.last else [])
        return Program(None, full, scores_prompt=scores, argmax=argmax)

    def _needs_full(self, sequence: Sequence) -> bool:
        asks = sequence.matcher is not None or sequence.wants_logprobs
        return self._config.exact or sequence.controlled or asks

    def _can_argmax(self, members: Rows[Sequence]) -> bool:
        return self._has_argmax and not any(member.needs_logits for member in members)
