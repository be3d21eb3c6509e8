"""`token_origins` of both endpoints, over an engine with a tiny random pair."""

import json
import re
from typing import Any

import pytest
from fake_engine import expected_answer
from fake_server import Served

pytestmark = pytest.mark.xdist_group("served pair")

PROMPT = list(range(40, 60))
BODY: dict[str, Any] = {"max_tokens": 40, "seed": 3, "temperature": 1, "ignore_eos": True}
ENDPOINTS = {
    "/v1/completions": {"prompt": PROMPT},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}


def choices(server: Served, path: str, **more: Any) -> list[dict[str, Any]]:
    """The only choice of an answer, or its pieces in a stream."""
    body = ENDPOINTS[path] | BODY | {"return_token_ids": True} | more
    text = server.http.post(path, json=body).text
    if not body.get("stream"):
        return json.loads(text)["choices"]
    lines = [line for line in text.split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: "))["choices"][0] for line in lines]


def text_of(choice: dict[str, Any]) -> str:
    return choice["message"]["content"] if "message" in choice else choice["text"]


def accepted_per_pos(server: Served) -> list[int]:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    found = re.findall(rf"^{name}{{.*}} (\d+)$", server.http.get("/metrics").text, re.MULTILINE)
    return [int(count) for count in found]


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_said_unless_asked_for(server: Served, path: str, stream: bool) -> None:
    assert not any("token_origins" in c for c in choices(server, path, stream=stream))


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_token_has_its_text_and_draft_as_the_metrics_count(server: Served, path: str) -> None:
    """Streamed and whole; this pair's random tokens split characters."""
    before = accepted_per_pos(server)
    (whole,) = choices(server, path, token_origins=True)
    after = accepted_per_pos(server)
    entries = whole["token_origins"]
    assert len(entries) == len(whole["token_ids"]) == 40
    assert "".join(entry["text"] for entry in entries) == text_of(whole)
    origins = [entry["origin"] for entry in entries]
    counts = [origins.count(position) for position in (1, 2, 3)]
    assert counts == [b - a for a, b in zip(before, after, strict=True)] and counts[0]
    assert sum(counts) == whole["spec"]["accepted"]
    assert origins.count(0) == 1 + whole["spec"]["rounds"]
    pieces = choices(server, path, token_origins=True, stream=True)
    assert all(len(p["token_origins"]) == len(p["token_ids"]) for p in pieces)
    assert [entry for piece in pieces for entry in piece["token_origins"]] == entries


def test_plain_decoding_has_only_the_targets_tokens(server: Served) -> None:
    (plain,) = choices(server, "/v1/completions", token_origins=True, speculative={"num_tokens": 0})
    assert {entry["origin"] for entry in plain["token_origins"]} == {0}


def test_a_stop_id_has_an_entry_but_adds_no_text(server: Served) -> None:
    (free,) = choices(server, "/v1/completions")
    stop = free["token_ids"][9]
    (ended,) = choices(server, "/v1/completions", token_origins=True, stop_token_ids=[stop])
    entries = ended["token_origins"]
    assert len(entries) == len(ended["token_ids"]) == 10 and ended["token_ids"][-1] == stop
    assert "".join(entry["text"] for entry in entries) == ended["text"]


def test_choices_have_their_own_origins(fake: Served) -> None:
    """Rounds of the fake engine accept one draft."""
    body = {"prompt": ["abc", "b"], "max_tokens": 5, "seed": 2, "token_origins": True}
    found = fake.http.post("/v1/completions", json=body).json()["choices"]
    for choice, prompt in zip(found, body["prompt"], strict=True):
        assert [entry["origin"] for entry in choice["token_origins"]] == [1, 0, 1, 0, 1]
        texts = [entry["text"] for entry in choice["token_origins"]]
        assert "".join(texts) == expected_answer(prompt, 2, 5)
