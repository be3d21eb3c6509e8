"""The response field `metrics.speculative_decoding`: vLLM's fields, followed by our own.

The formulas are those of docs/metrics.md. A step is a round that verified draft tokens.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, Field

from eagle3_jax.engine import Acceptance, Round
from serve.options.serve_options import SpecMetricsLevel


class SpeculativeDecodingMetrics(BaseModel):
    """Speculation metrics of one request, read from its Acceptance by the aliases.

    The last three have one entry per step and appear only at level "detailed".
    """

    mean_acceptance_length: float | None = Field(validation_alias="accept_length")
    draft_acceptance_rate: float | None = Field(validation_alias="acceptance_rate")
    acceptance_histogram: list[int] = Field(validation_alias="accepted_histogram")
    num_spec_steps: int = Field(validation_alias="num_drafts")
    num_accepted_draft_tokens: int = Field(validation_alias="num_accepted_tokens")
    num_draft_tokens: int
    num_spec_tokens: int = Field(validation_alias="num_speculative_tokens")
    eos_corrected_acceptance_length: float | None = Field(
        validation_alias="accept_length_eos_corrected"
    )
    acceptance_per_position: list[float | None] = Field(validation_alias="acceptance_per_pos")
    conditional_acceptance_per_position: list[float | None] = Field(
        validation_alias="conditional_acceptance_per_pos"
    )
    num_skipped_draft_tokens: int = 0
    per_step_accepted: list[int] | None = None
    per_step_drafted: list[int] | None = None
    per_step_kept: list[int] | None = None


def measure(
    level: SpecMetricsLevel, num_spec_tokens: int, rounds: Sequence[Sequence[Round]]
) -> dict[str, dict[str, Any]]:
    """Return the field `metrics`; {} at level "none", null for several sequences or no drafts."""
    if level == "none":
        return {}
    found = None
    if num_spec_tokens and len(rounds) == 1:
        found = _of_request(rounds[0], num_spec_tokens, detailed=level == "detailed")
    told = found and found.model_dump(exclude_unset=True)
    return {"metrics": {"speculative_decoding": told}}


def _of_request(
    rounds: Sequence[Round], num_spec_tokens: int, *, detailed: bool
) -> SpeculativeDecodingMetrics:
    counts = Acceptance(Counter(rounds), num_spec_tokens)
    found = SpeculativeDecodingMetrics.model_validate(counts, from_attributes=True)
    found.num_skipped_draft_tokens = counts.skipped_by_request + counts.skipped_for_room
    if detailed:
        steps = [r for r in rounds if r.verified]
        found.per_step_accepted = [r.accepted for r in steps]
        found.per_step_drafted = [r.verified for r in steps]
        found.per_step_kept = [r.kept for r in steps]
    return found
