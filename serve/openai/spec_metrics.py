"""The response field `metrics.speculative_decoding`: vLLM's fields, followed by our own.

The formulas are those of docs/metrics.md. A step is a round that verified draft tokens.
"""

from collections import Counter
from typing import Any

from eagle3_jax.engine import Acceptance
from serve.engine.choices import Choices
from serve.openai.service import Service

FIELDS = {
    "mean_acceptance_length": "accept_length",
    "draft_acceptance_rate": "acceptance_rate",
    "acceptance_histogram": "accepted_histogram",
    "num_spec_steps": "num_drafts",
    "num_accepted_draft_tokens": "num_accepted_tokens",
    "num_draft_tokens": "num_draft_tokens",
    "num_spec_tokens": "num_speculative_tokens",
    "eos_corrected_acceptance_length": "accept_length_eos_corrected",
    "acceptance_per_position": "acceptance_per_pos",
    "conditional_acceptance_per_position": "conditional_acceptance_per_pos",
    "num_lookup_draft_tokens": "num_lookup_draft_tokens",
    "num_accepted_lookup_tokens": "num_accepted_lookup_tokens",
}
"""Fields of the response, with the attributes of `Acceptance` that they hold."""


def spec_metrics(service: Service, choices: Choices) -> dict[str, Any]:
    """Return the field `metrics`; {} at level "none", null for several sequences or no drafts.

    At level "detailed" three lists have one entry per step.
    """
    level, num_spec_tokens = service.spec_metrics, service.engine.stats.num_speculative_tokens
    if level == "none":
        return {}
    if not num_spec_tokens or len(choices.states) > 1:
        return {"metrics": {"speculative_decoding": None}}
    rounds = choices.states[0].rounds
    counts = Acceptance(Counter(rounds), num_spec_tokens)
    found = {name: getattr(counts, attribute) for name, attribute in FIELDS.items()}
    found["num_skipped_draft_tokens"] = counts.skipped_by_request + counts.skipped_for_room
    if level == "detailed":
        steps = [r for r in rounds if r.verified]
        found["per_step_accepted"] = [r.accepted for r in steps]
        found["per_step_drafted"] = [r.verified for r in steps]
        found["per_step_kept"] = [r.kept for r in steps]
    return {"metrics": {"speculative_decoding": found}}
