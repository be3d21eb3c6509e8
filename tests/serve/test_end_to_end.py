"""The server and eagle3-generate over a real engine with a tiny random pair of models."""

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from fake_server import Served
from pydantic import BaseModel, ConfigDict, Field

from serve.generate.cli import main as generate_main

pytestmark = pytest.mark.xdist_group("served pair")

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
PROMPT = list(range(40, 60))
HELLO: Any = [{"role": "user", "content": "hello"}]
CLOSE = 2e-4
FLAGS = ["--bad-words", "the", "--logit-bias", '{"41": 2.5, "50": -100}', "--ignore-eos"]
FLAGS += ["--repetition-penalty", "1.2", "--presence-penalty", "0.4", "--frequency-penalty", "0.3"]
FLAGS += ["--temperature", "0.8", "--top-p", "0.9", "--seed", "7", "--max-tokens", "24", "--echo"]
FLAGS += ["--logprobs", "2", "--prompt-logprobs", "1"]
SAME_OPTIONS: dict[str, Any] = {
    "bad_words": ["the"],
    "logit_bias": {"41": 2.5, "50": -100},
    "ignore_eos": True,
    "repetition_penalty": 1.2,
    "presence_penalty": 0.4,
    "frequency_penalty": 0.3,
    **{"temperature": 0.8, "top_p": 0.9, "seed": 7, "max_tokens": 24, "echo": True},
    **{"logprobs": 2, "prompt_logprobs": 1},
}


def test_speculative_server_answers_as_plain_eagle3_generate(
    server: Served, target_directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Token by token, with the same log-probabilities."""
    argv = [str(target_directory), "--json", "--raw", "--prompt", "hello there"]
    assert generate_main([*argv, "--max-model-len", "256", *FLAGS]) == 0
    plain = json.loads(capsys.readouterr().out)
    body = SAME_OPTIONS | {"prompt": "hello there", "return_token_ids": True}
    (choice,) = server.ask(COMPLETIONS, **body)["choices"]
    assert choice["token_ids"] == plain["token_ids"]
    assert (choice["text"], choice["seed"]) == (plain["text"], plain["seed"])
    assert choice["text"].startswith("hello there")
    assert choice["spec"]["accepted"] > 0 and set(plain["accepted"]) <= {0}
    assert plain["prompt_logprobs"][0] is None
    printed = [*plain["prompt_logprobs"][1:], *plain["logprobs"]]
    values = [next(iter(entry.values())) for entry in printed]
    assert [v["decoded_token"] for v in values] == choice["logprobs"]["tokens"][1:]
    logprobs = choice["logprobs"]["token_logprobs"][1:]
    assert [v["logprob"] for v in values] == pytest.approx(logprobs, abs=CLOSE)
    assert all(len(entry) in (2, 3) for entry in plain["logprobs"])


def test_options_that_bar_every_token_are_an_error_of_that_request(server: Served) -> None:
    allowed = server.service.tokenizer.encode("a")
    body = {"prompt": PROMPT, "allowed_token_ids": allowed, "max_tokens": 2}
    (choice,) = server.ask(COMPLETIONS, **body, return_token_ids=True)["choices"]
    assert set(choice["token_ids"]) <= set(allowed)
    body |= {"bad_words": ["a"]}
    assert "bar every token" in server.refusal(COMPLETIONS, body)["message"]
    streamed = server.http.post(COMPLETIONS, json=body | {"stream": True}).text
    assert "bar every token" in streamed and streamed.endswith("data: [DONE]\n\n")
    good = server.ask(COMPLETIONS, prompt=PROMPT, max_tokens=2)
    assert good["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("path", ["/flush_cache", "/reset_prefix_cache"])
def test_a_flushed_cache_finds_nothing(server: Served, path: str) -> None:
    def cached_tokens() -> int:
        usage = server.ask(COMPLETIONS, prompt=[41] * 100, max_tokens=2)["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    cached_tokens()
    assert cached_tokens() > 0
    server.ask(path)
    stats = server.service.engine.stats
    assert stats.free_pages == stats.total_pages
    assert cached_tokens() == 0


@pytest.mark.parametrize(
    "body, naming",
    [
        ({"prompt": [40, 576]}, "576"),
        ({"prompt": PROMPT, "logit_bias": {"576": 1}}, "logit_bias"),
        ({"prompt": PROMPT, "guided_json": {"type": "sizes"}}, "Invalid type: sizes"),
        ({"prompt": PROMPT, "guided_json": False}, "Unsatisfiable"),
        ({"prompt": PROMPT, "guided_regex": "[^\\x00-\\U0010ffff]"}, "no answer satisfies"),
        ({"prompt": PROMPT, "guided_json": {"enum": ["x" * 2**20]}}, "262144 bytes"),
    ],
)
def test_bad_requests_are_refused_and_the_server_goes_on(
    server: Served, body: dict, naming: str
) -> None:
    assert naming in server.refusal(COMPLETIONS, body)["message"]
    good = server.ask(COMPLETIONS, prompt=PROMPT, max_tokens=2)
    assert good["usage"]["completion_tokens"] == 2


class Weather(BaseModel):
    """The arguments of a call; what JSON Schema says of it goes with the request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    city: str = Field(min_length=1, max_length=8)
    days: int = Field(ge=1, le=9)
    unit: Literal["c", "f"]
    again: list[bool] = Field(max_length=2)


STRICT = {"name": "weather", "parameters": Weather.model_json_schema(), "strict": True}
OTHER = {"name": "time", "parameters": {"type": "object"}}


def test_every_strict_call_of_a_random_model_fits_and_drafts_change_no_token(
    server: Served,
) -> None:
    """Each answer begins a section of calls wherever it can; pydantic says whether they fit."""
    pytest.importorskip("llguidance")
    (section,) = server.service.tokenizer.encode("<|tool_calls_section_begin|>", add_special=True)
    only = {"mode": "auto", "tools": [{"type": "function", "function": {"name": "weather"}}]}
    body = {
        "messages": HELLO,
        "tools": [{"type": "function", "function": tool} for tool in (STRICT, OTHER)],
        "tool_choice": {"type": "allowed_tools", "allowed_tools": only},
        "logit_bias": {str(section): 100},
        "return_token_ids": True,
        **{"max_tokens": 180, "seed": 5, "n": 2},
    }
    drafted = server.ask(CHAT, **body)["choices"]
    plain = server.ask(CHAT, **body, speculative={"num_tokens": 0})["choices"]
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
