"""POST /v1/completions as clients see it."""

import json

import httpx
import pytest
from fake_engine import MAX_MODEL_LEN, FakeEngine, expected_answer
from fake_server import Served


def stream_events(response: httpx.Response) -> list[dict]:
    """The events of a stream, whose framing is checked on the way."""
    lines = response.text.split("\n\n")
    assert lines[-2:] == ["data: [DONE]", ""]
    assert all(line.startswith("data: ") and "\n" not in line for line in lines[:-1])
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def test_answer_is_the_engines_with_usage_and_seed(fake: Served) -> None:
    answer = fake.openai.completions.create(model="fake", prompt="abc", max_tokens=9, seed=5)
    assert answer.object == "text_completion"
    assert answer.choices[0].text == expected_answer("abc", 5, 9)
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (3, 9)
    assert answer.usage.total_tokens == 12
    assert answer.model_extra is not None and answer.model_extra["seed"] == 5


def test_max_tokens_default_is_16(fake: Served) -> None:
    body = fake.http.post("/v1/completions", json={"prompt": "abc"}).json()
    assert body["usage"]["completion_tokens"] == 16
    assert body["model"] == "fake"


@pytest.mark.parametrize("most", [1, 100])
def test_a_prompt_and_max_tokens_that_fill_the_context_are_served(fake: Served, most: int) -> None:
    body = {"prompt": "a" * (MAX_MODEL_LEN - most), "max_tokens": most}
    answer = fake.http.post("/v1/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == most
    assert answer["usage"]["total_tokens"] == MAX_MODEL_LEN
    refused = fake.http.post("/v1/completions", json={**body, "max_tokens": most + 1})
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_stream_concatenates_to_the_whole_answer(fake: Served) -> None:
    stream = fake.openai.completions.create(
        model="fake", prompt="abc", max_tokens=9, seed=5, stream=True
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected_answer("abc", 5, 9)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_first_event_carries_the_first_token(fake: Served) -> None:
    body = {"prompt": "abc", "max_tokens": 4, "stream": True}
    events = stream_events(fake.http.post("/v1/completions", json=body))
    assert events[0]["choices"][0]["text"]


def test_usage_comes_only_when_asked_for(fake: Served) -> None:
    body = {"prompt": "abc", "max_tokens": 4, "stream": True}
    plain = stream_events(fake.http.post("/v1/completions", json=body))
    assert all(event["choices"] and "usage" not in event for event in plain)
    body["stream_options"] = {"include_usage": True}
    asked = stream_events(fake.http.post("/v1/completions", json=body))
    assert asked[-1]["choices"] == []
    assert asked[-1]["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    running = stream_events(fake.http.post("/v1/completions", json=body))
    seen = "".join(event["choices"][0]["text"] for event in running[:1])
    assert running[0]["usage"]["completion_tokens"] == len(seen)
    assert running[-2]["usage"] == running[-1]["usage"] == asked[-1]["usage"]


@pytest.mark.parametrize(
    "prompt", ["ab", ["ab", "cde"], [97, 98], [[97, 98], [99]]], ids=["str", "strs", "ids", "lists"]
)
def test_every_form_of_prompt_gives_one_choice_per_prompt(fake: Served, prompt: list) -> None:
    body = {"prompt": prompt, "max_tokens": 3, "seed": 1}
    answer = fake.http.post("/v1/completions", json=body).json()
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    assert [c["index"] for c in answer["choices"]] == list(range(len(prompts)))
    assert [c["text"] for c in answer["choices"]] == [expected_answer(p, 1, 3) for p in prompts]
    assert answer["usage"]["prompt_tokens"] == sum(len(p) for p in prompts)


def test_sibling_i_has_seed_plus_i_prompt_by_prompt(fake: Served) -> None:
    body = {"prompt": ["ab", "cd"], "n": 2, "best_of": 2, "max_tokens": 3, "seed": 10}
    answer = fake.http.post("/v1/completions", json=body).json()
    choices = answer["choices"]
    wanted = [("ab", 10), ("ab", 11), ("cd", 10), ("cd", 11)]
    assert [c["text"] for c in choices] == [expected_answer(p, seed, 3) for p, seed in wanted]
    assert [c["seed"] for c in choices] == [10, 11, 10, 11]
    usage = answer["usage"]
    assert [usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")] == [4, 12, 16]


def test_cached_tokens_count_once_for_each_prompt(serve) -> None:
    body = {"prompt": ["abc", "def"], "n": 2, "max_tokens": 3}
    answer = serve(FakeEngine(cached_tokens=2)).http.post("/v1/completions", json=body).json()
    assert answer["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}


def test_siblings_interleave_in_a_stream_by_index(fake: Served) -> None:
    body = {"prompt": "ab", "n": 3, "max_tokens": 6, "seed": 1, "stream": True}
    events = stream_events(fake.http.post("/v1/completions", json=body))
    texts = ["", "", ""]
    for event in events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == [expected_answer("ab", 1 + i, 6) for i in range(3)]
    assert {e["choices"][0]["index"] for e in events[:3]} == {0, 1, 2}


def test_unseeded_request_reports_a_seed_that_gives_it_again(fake: Served) -> None:
    body: dict = {"prompt": ["ab", "ab"], "max_tokens": 8}
    first = fake.http.post("/v1/completions", json=body).json()["choices"]
    assert first[0]["seed"] != first[1]["seed"]
    again = {"prompt": "ab", "max_tokens": 8, "seed": first[1]["seed"]}
    second = fake.http.post("/v1/completions", json=again).json()["choices"][0]
    assert second["text"] == first[1]["text"]


def test_stop_string_ends_the_answer_and_is_named(fake: Served) -> None:
    stop = expected_answer("ab", 0, 6)[4:]
    body = {"prompt": "ab", "max_tokens": 20, "seed": 0, "stop": [stop, "\0"]}
    choice = fake.http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["text"] == expected_answer("ab", 0, 4)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_token_ids_on_request(fake: Served) -> None:
    body = {"prompt": "ab", "max_tokens": 5, "seed": 0, "return_token_ids": True}
    choice = fake.http.post("/v1/completions", json=body).json()["choices"][0]
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    assert choice["prompt_token_ids"] == [97, 98]
    events = stream_events(fake.http.post("/v1/completions", json=body | {"stream": True}))
    pieces = [event["choices"][0] for event in events]
    assert [i for piece in pieces for i in piece["token_ids"]] == choice["token_ids"]
    assert "prompt_token_ids" in pieces[0]
    assert not any("prompt_token_ids" in piece for piece in pieces[1:])


def test_spec_metrics_follow_the_rounds(fake: Served) -> None:
    body = {"prompt": "ab", "max_tokens": 6, "seed": 0}
    choice = fake.http.post("/v1/completions", json=body).json()["choices"][0]
    assert choice["spec"] == {"rounds": 3, "accepted": 3, "accept_length": 2.0}


def test_neutral_values_and_unknown_fields_are_accepted(fake: Served) -> None:
    body = {
        "model": "alias",
        "prompt": "ab",
        "best_of": 1,
        "logprobs": None,
        "repetition_penalty": 1.0,
        "presence_penalty": 0,
        "ignore_eos": True,
        "no_stop_trim": True,
        "temperature": None,
        "stream_options": None,
    }
    headers = {"Authorization": "Bearer None", "X-Request-ID": "7"}
    answer = fake.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200
    assert answer.json()["model"] == "alias"


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_of_0_tokens_is_the_prompt_alone(fake: Served, stream: bool) -> None:
    body = {"prompt": ["ab", "c"], "echo": True, "max_tokens": 0, "stream": stream}
    answer = fake.http.post("/v1/completions", json=body)
    if stream:
        choices = [event["choices"][0] for event in stream_events(answer)]
    else:
        choices = answer.json()["choices"]
        assert answer.json()["usage"]["completion_tokens"] == 0
    assert [choice["text"] for choice in choices] == ["ab", "c"]
    assert {choice["finish_reason"] for choice in choices} == {"length"}


def test_what_clients_send_without_need_changes_nothing(fake: Served) -> None:
    body = {"prompt": "abc", "max_tokens": 9, "seed": 5}
    stray = {"best_of": 1, "logprobs": None, "repetition_penalty": 1.0, "ignore_eos": True}
    stray |= {"max_gen_toks": 7, "no_stop_trim": False, "return_hidden_states": False, "n": 1}
    headers = {"Authorization": "Bearer None", "X-Request-ID": "7"}
    answer = fake.http.post("/v1/completions", json=body | stray, headers=headers)
    assert answer.json()["choices"][0]["text"] == expected_answer("abc", 5, 9)
