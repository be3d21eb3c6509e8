"""metrics.speculative_decoding of responses: asked for at the start, in vLLM's form."""

from typing import Any

import pytest
from fake_engine import FakeEngine

COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"prompt": "ab", "max_tokens": 5, "seed": 0}
# Rounds of 3 drafts that accept one; the third is cut after its first token.
SUMMARY = {
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 3 / 9,
    "acceptance_histogram": [0, 3, 0, 0],
    "num_spec_steps": 3,
    "num_accepted_draft_tokens": 3,
    "num_draft_tokens": 9,
    "num_spec_tokens": 3,
    "eos_corrected_acceptance_length": 5 / 3,
    "acceptance_per_position": [1.0, 0.0, 0.0],
    "conditional_acceptance_per_position": [1.0, 0.0, None],
    "num_skipped_draft_tokens": 0,
}
STEPS = {"per_step_accepted": [1, 1, 1], "per_step_drafted": [3, 3, 3], "per_step_kept": [2, 2, 1]}


@pytest.fixture
def server(serve: Any) -> Any:
    return lambda level: serve(FakeEngine(width=2), spec_metrics=level)


def test_nothing_is_said_unless_asked_for(server: Any) -> None:
    assert "metrics" not in server("none").ask(COMPLETIONS, **BODY)


def test_a_summary_has_vllms_fields_and_the_corrected_length(server: Any) -> None:
    """A stream says it with its usage; several sequences have no metrics of one."""
    summary, told = server("summary"), {"speculative_decoding": SUMMARY}
    assert summary.ask(COMPLETIONS, **BODY)["metrics"] == told
    events = summary.events(COMPLETIONS, **BODY, stream_options={"include_usage": True})
    assert [("metrics" in event) for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["metrics"] == told
    for several in ({"n": 2}, {"prompt": ["a", "b"]}):
        answer = summary.ask(COMPLETIONS, **BODY | several)
        assert answer["metrics"] == {"speculative_decoding": None}


def test_details_add_an_entry_a_step(server: Any) -> None:
    told = server("detailed").ask(COMPLETIONS, **BODY)["metrics"]
    assert told == {"speculative_decoding": SUMMARY | STEPS}
