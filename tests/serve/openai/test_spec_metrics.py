"""metrics.speculative_decoding of responses: asked for at the start, in vLLM's form."""

import json
from typing import Any

import pytest
from fake_engine import FakeEngine
from fake_server import Served

from serve.options.serve_options import SpecMetricsLevel

BODY = {"prompt": "ab", "max_tokens": 5, "seed": 0}
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
def ask(serve: Any) -> Any:
    def post(level: SpecMetricsLevel, **body: Any) -> Any:
        server: Served = serve(FakeEngine(width=2), spec_metrics=level)
        return server.http.post("/v1/completions", json=BODY | body)

    return post


def test_nothing_is_said_unless_asked_for(ask: Any) -> None:
    assert "metrics" not in ask("none").json()


def test_a_summary_has_vllms_fields_and_the_corrected_length(ask: Any) -> None:
    assert ask("summary").json()["metrics"] == {"speculative_decoding": SUMMARY}


def test_details_add_an_entry_a_step(ask: Any) -> None:
    assert ask("detailed").json()["metrics"] == {"speculative_decoding": SUMMARY | STEPS}


def test_several_sequences_have_no_metrics_of_one(ask: Any) -> None:
    assert ask("summary", n=2).json()["metrics"] == {"speculative_decoding": None}
    assert ask("summary", prompt=["a", "b"]).json()["metrics"] == {"speculative_decoding": None}


def test_a_stream_says_it_with_its_usage(ask: Any) -> None:
    text = ask("summary", stream=True, stream_options={"include_usage": True}).text
    events = [json.loads(line[6:]) for line in text.split("\n") if line.startswith("data: {")]
    assert [("metrics" in event) for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["metrics"] == {"speculative_decoding": SUMMARY}
