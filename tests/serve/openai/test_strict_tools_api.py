"""Calls of strict tools by a random pair of models over HTTP: pydantic says whether they fit."""

from typing import Any, Literal

import pytest
from fake_server import Served
from pydantic import BaseModel, ConfigDict, Field

pytest.importorskip("llguidance")


class Weather(BaseModel):
    """The arguments of a call; what JSON Schema says of it goes with the request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    city: str = Field(min_length=1, max_length=8)
    days: int = Field(ge=1, le=9)
    unit: Literal["c", "f"]
    again: list[bool] = Field(max_length=2)


TOOL = {"name": "weather", "parameters": Weather.model_json_schema(), "strict": True}
OTHER = {"name": "time", "parameters": {"type": "object"}}


def ask(server: Served, **more: Any) -> list[dict[str, Any]]:
    """Answers that begin a section of calls wherever they can, behind the first one's end too."""
    (section,) = server.service.tokenizer.encode("<|tool_calls_section_begin|>", add_special=True)
    body = {
        "messages": [{"role": "user", "content": "hello"}],
        "tools": [{"type": "function", "function": tool} for tool in (TOOL, OTHER)],
        "tool_choice": {
            "type": "allowed_tools",
            "allowed_tools": {
                "mode": "auto",
                "tools": [{"type": "function", "function": {"name": "weather"}}],
            },
        },
        "logit_bias": {str(section): 100},
        "return_token_ids": True,
        "max_tokens": 180,
        "seed": 5,
        "n": 4,
    }
    answer = server.http.post("/v1/chat/completions", json=body | more)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"]


@pytest.mark.xdist_group("served pair")
def test_every_call_of_a_random_model_fits_and_drafts_change_no_token(server: Served) -> None:
    drafted, plain = ask(server), ask(server, speculative={"num_tokens": 0})
    assert [c["token_ids"] for c in drafted] == [c["token_ids"] for c in plain]
    assert sum(choice["spec"]["accepted"] for choice in drafted) > 0
    count = 0
    for choice in drafted:
        calls = choice["message"].get("tool_calls") or []
        # The length may have cut the last one.
        whole = calls if choice["finish_reason"] != "length" else calls[:-1]
        for call in whole:
            assert call["function"]["name"] == "weather"
            Weather.model_validate_json(call["function"]["arguments"])
        count += len(whole)
    assert count > 0
