"""`token_origins` of both endpoints, over an engine with a tiny random pair."""

import re
from typing import Any

import pytest
from fake_engine import expected_answer
from fake_server import Served

pytestmark = pytest.mark.xdist_group("served pair")

COMPLETIONS = "/v1/completions"
BODY: dict[str, Any] = {"max_tokens": 40, "seed": 3, "temperature": 1, "ignore_eos": True}
BODY |= {"return_token_ids": True}
ENDPOINTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": list(range(40, 60))},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello"}]},
}


def ask(server: Served, path: str = COMPLETIONS, **more: Any) -> dict[str, Any]:
    """The only choice of an answer."""
    return server.ask(path, **ENDPOINTS[path] | BODY | more)["choices"][0]


def accepted_per_pos(server: Served) -> list[int]:
    name = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
    found = re.findall(rf"^{name}{{.*}} (\d+)$", server.http.get("/metrics").text, re.MULTILINE)
    return [int(count) for count in found]


@pytest.mark.parametrize("path", ENDPOINTS)
def test_every_token_has_its_text_and_draft_as_the_metrics_count(server: Served, path: str) -> None:
    """Streamed and whole; this pair's random tokens split characters."""
    before = accepted_per_pos(server)
    whole = ask(server, path, token_origins=True)
    after = accepted_per_pos(server)
    entries = whole["token_origins"]
    assert len(entries) == len(whole["token_ids"]) == 40
    text = whole["message"]["content"] if "message" in whole else whole["text"]
    assert "".join(entry["text"] for entry in entries) == text
    origins = [entry["origin"] for entry in entries]
    counts = [origins.count(position) for position in (1, 2, 3)]
    assert counts == [b - a for a, b in zip(before, after, strict=True)] and counts[0]
    assert sum(counts) == whole["spec"]["accepted"]
    assert origins.count(0) == 1 + whole["spec"]["rounds"]
    body = ENDPOINTS[path] | BODY
    pieces = [e["choices"][0] for e in server.events(path, **body, token_origins=True)]
    assert all(len(p["token_origins"]) == len(p["token_ids"]) for p in pieces)
    assert [entry for piece in pieces for entry in piece["token_origins"]] == entries
    unasked = [ask(server, path), *(e["choices"][0] for e in server.events(path, **body))]
    assert not any("token_origins" in choice for choice in unasked)


def test_plain_decoding_has_only_the_targets_tokens_and_a_stop_id_adds_no_text(
    server: Served,
) -> None:
    plain = ask(server, token_origins=True, speculative={"num_tokens": 0})
    assert {entry["origin"] for entry in plain["token_origins"]} == {0}
    stop = plain["token_ids"][9]
    ended = ask(server, token_origins=True, stop_token_ids=[stop])
    entries = ended["token_origins"]
    assert len(entries) == len(ended["token_ids"]) == 10 and ended["token_ids"][-1] == stop
    assert "".join(entry["text"] for entry in entries) == ended["text"]


def test_choices_have_their_own_origins(fake: Served) -> None:
    """Rounds of the fake engine accept one draft."""
    prompts = ["abc", "b"]
    found = fake.ask(COMPLETIONS, prompt=prompts, max_tokens=5, seed=2, token_origins=True)
    for choice, prompt in zip(found["choices"], prompts, strict=True):
        assert [entry["origin"] for entry in choice["token_origins"]] == [1, 0, 1, 0, 1]
        texts = [entry["text"] for entry in choice["token_origins"]]
        assert "".join(texts) == expected_answer(prompt, 2, 5)
