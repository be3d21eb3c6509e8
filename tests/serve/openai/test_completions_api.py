"""POST /v1/completions and POST /v1/chat/completions as clients see them."""

from typing import Any

import pytest
from fake_engine import MAX_MODEL_LEN, FakeEngine, expected_answer
from fake_server import Served

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO: Any = [{"role": "user", "content": "hello"}]


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
    answer = fake.ask(COMPLETIONS, prompt="abc")
    assert answer["usage"]["completion_tokens"] == 16 and answer["model"] == "fake"


@pytest.mark.parametrize("most", [1, 100])
def test_a_prompt_and_max_tokens_that_fill_the_context_are_served(fake: Served, most: int) -> None:
    body: dict[str, Any] = {"prompt": "a" * (MAX_MODEL_LEN - most), "max_tokens": most}
    usage = fake.ask(COMPLETIONS, **body)["usage"]
    assert (usage["completion_tokens"], usage["total_tokens"]) == (most, MAX_MODEL_LEN)
    error = fake.refusal(COMPLETIONS, body | {"max_tokens": most + 1})
    assert error["code"] == "context_length_exceeded"


def test_stream_concatenates_to_the_whole_answer(fake: Served) -> None:
    stream = fake.openai.completions.create(
        model="fake", prompt="abc", max_tokens=9, seed=5, stream=True
    )
    chunks = list(stream)
    assert chunks[0].choices[0].text, "the first event carries the first token"
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected_answer("abc", 5, 9)
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1].choices[0].finish_reason == "length"


def test_usage_comes_only_when_asked_for(fake: Served) -> None:
    def events(**options: bool) -> list[dict[str, Any]]:
        given = {"stream_options": options} if options else {}
        return fake.events(COMPLETIONS, prompt="abc", max_tokens=4, **given)

    assert all(event["choices"] and "usage" not in event for event in events())
    last = events(include_usage=True)[-1]
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 4,
        "total_tokens": 7,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    running = events(include_usage=True, continuous_usage_stats=True)
    assert running[0]["usage"]["completion_tokens"] == len(running[0]["choices"][0]["text"])
    assert running[-2]["usage"] == running[-1]["usage"] == last["usage"]


@pytest.mark.parametrize("prompt", ["ab", ["ab", "cde"], [97, 98], [[97, 98], [99]]], ids=str)
def test_every_form_of_prompt_gives_one_choice_per_prompt(fake: Served, prompt: list) -> None:
    answer = fake.ask(COMPLETIONS, prompt=prompt, max_tokens=3, seed=1)
    prompts = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    assert [c["index"] for c in answer["choices"]] == list(range(len(prompts)))
    assert [c["text"] for c in answer["choices"]] == [expected_answer(p, 1, 3) for p in prompts]
    assert answer["usage"]["prompt_tokens"] == sum(len(p) for p in prompts)


def test_sibling_i_has_seed_plus_i_prompt_by_prompt(fake: Served) -> None:
    answer = fake.ask(COMPLETIONS, prompt=["ab", "cd"], n=2, best_of=2, max_tokens=3, seed=10)
    choices = answer["choices"]
    wanted = [("ab", 10), ("ab", 11), ("cd", 10), ("cd", 11)]
    assert [c["text"] for c in choices] == [expected_answer(p, seed, 3) for p, seed in wanted]
    assert [c["seed"] for c in choices] == [10, 11, 10, 11]
    usage = answer["usage"]
    assert [usage[f"{kind}_tokens"] for kind in ("prompt", "completion", "total")] == [4, 12, 16]


def test_cached_tokens_count_once_for_each_prompt(serve) -> None:
    server: Served = serve(FakeEngine(cached_tokens=2))
    usage = server.ask(COMPLETIONS, prompt=["abc", "def"], n=2, max_tokens=3)["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 4}


def test_siblings_interleave_in_a_stream_by_index(fake: Served) -> None:
    events = fake.events(COMPLETIONS, prompt="ab", n=3, max_tokens=6, seed=1)
    texts = ["", "", ""]
    for event in events:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == [expected_answer("ab", 1 + i, 6) for i in range(3)]
    assert {e["choices"][0]["index"] for e in events[:3]} == {0, 1, 2}


def test_unseeded_request_reports_a_seed_that_gives_it_again(fake: Served) -> None:
    first = fake.ask(COMPLETIONS, prompt=["ab", "ab"], max_tokens=8)["choices"]
    assert first[0]["seed"] != first[1]["seed"]
    again = fake.ask(COMPLETIONS, prompt="ab", max_tokens=8, seed=first[1]["seed"])
    assert again["choices"][0]["text"] == first[1]["text"]


def test_stop_string_ends_the_answer_and_is_named(fake: Served) -> None:
    stop = expected_answer("ab", 0, 6)[4:]
    answer = fake.ask(COMPLETIONS, prompt="ab", max_tokens=20, seed=0, stop=[stop, "\0"])
    choice = answer["choices"][0]
    assert choice["text"] == expected_answer("ab", 0, 4)
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_token_ids_and_spec_metrics(fake: Served) -> None:
    body: dict[str, Any] = {"prompt": "ab", "max_tokens": 6, "seed": 0, "return_token_ids": True}
    (choice,) = fake.ask(COMPLETIONS, **body)["choices"]
    assert bytes(choice["token_ids"]).decode() == choice["text"]
    assert choice["prompt_token_ids"] == [97, 98]
    assert choice["spec"] == {
        "rounds": 3,
        "accepted": 3,
        "accepted_lookup": 0,
        "accept_length": 2.0,
    }
    pieces = [event["choices"][0] for event in fake.events(COMPLETIONS, **body)]
    assert [i for piece in pieces for i in piece["token_ids"]] == choice["token_ids"]
    assert "prompt_token_ids" in pieces[0]
    assert not any("prompt_token_ids" in piece for piece in pieces[1:])


def test_an_echo_of_0_tokens_is_the_prompt_alone(fake: Served) -> None:
    body: dict[str, Any] = {"prompt": ["ab", "c"], "echo": True, "max_tokens": 0}
    whole = fake.ask(COMPLETIONS, **body)
    assert whole["usage"]["completion_tokens"] == 0
    streamed = [event["choices"][0] for event in fake.events(COMPLETIONS, **body)]
    for choices in (whole["choices"], streamed):
        assert [choice["text"] for choice in choices] == ["ab", "c"]
        assert {choice["finish_reason"] for choice in choices} == {"length"}


def test_what_clients_send_without_need_changes_nothing(fake: Served) -> None:
    stray = {"best_of": 1, "logprobs": None, "repetition_penalty": 1.0, "presence_penalty": 0}
    stray |= {"max_gen_toks": 7, "no_stop_trim": False, "return_hidden_states": False, "n": 1}
    stray |= {"ignore_eos": True, "temperature": None, "stream_options": None, "model": "alias"}
    body = {"prompt": "abc", "max_tokens": 9, "seed": 5} | stray
    headers = {"Authorization": "Bearer None", "X-Request-ID": "7"}
    answer = fake.http.post(COMPLETIONS, json=body, headers=headers).json()
    assert answer["choices"][0]["text"] == expected_answer("abc", 5, 9)
    assert answer["model"] == "alias"


def test_a_chat_streams_its_role_with_the_first_token(fake: Served) -> None:
    stream = fake.openai.chat.completions.create(
        model="fake",
        messages=HELLO,
        max_tokens=7,
        seed=3,
        stream=True,
        stream_options={"include_usage": True},
    )
    *pieces, last = list(stream)
    deltas = [piece.choices[0].delta for piece in pieces]
    assert [delta.role for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert deltas[0].content
    assert "".join(d.content or "" for d in deltas) == expected_answer("hello", 3, 7)
    assert last.choices == [] and last.usage is not None and last.usage.total_tokens == 12


@pytest.mark.parametrize("content", ["hello", [{"type": "text", "text": p} for p in ("hel", "lo")]])
def test_content_is_a_string_or_text_parts(fake: Served, content: Any) -> None:
    messages: Any = [{"role": "user", "content": content}]
    answer = fake.openai.chat.completions.create(
        model="fake", messages=messages, max_tokens=4, seed=0
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == expected_answer("hello", 0, 4)


def test_a_chats_limit_is_max_completion_tokens_or_the_context(fake: Served) -> None:
    assert fake.ask(CHAT, messages=HELLO)["usage"]["total_tokens"] == MAX_MODEL_LEN
    answer = fake.ask(CHAT, messages=HELLO, max_tokens=9, max_completion_tokens=2)
    assert answer["usage"]["completion_tokens"] == 2


SHORT: dict[str, Any] = {"prompt": "ab", "max_tokens": 5, "seed": 0}
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
    "num_lookup_draft_tokens": 0,
    "num_accepted_lookup_tokens": 0,
    "num_skipped_draft_tokens": 0,
}
STEPS = {"per_step_accepted": [1, 1, 1], "per_step_drafted": [3, 3, 3], "per_step_kept": [2, 2, 1]}


@pytest.mark.parametrize("level", ["none", "summary", "detailed"])
def test_a_summary_has_vllms_fields_and_the_corrected_length(serve: Any, level: Any) -> None:
    """Details add an entry per step. A stream says it with its usage, several sequences nothing."""
    server: Served = serve(FakeEngine(width=2), spec_metrics=level)
    told = {"speculative_decoding": SUMMARY | (STEPS if level == "detailed" else {})}
    metrics = {} if level == "none" else {"metrics": told}
    answer = server.ask(COMPLETIONS, **SHORT)
    assert {name: answer[name] for name in answer if name == "metrics"} == metrics
    *events, last = server.events(COMPLETIONS, **SHORT, stream_options={"include_usage": True})
    assert last.get("metrics") == metrics.get("metrics")
    assert not any("metrics" in event for event in events)
    for several in ({"n": 2}, {"prompt": ["a", "b"]}) if metrics else ():
        answer = server.ask(COMPLETIONS, **SHORT | several)
        assert answer["metrics"] == {"speculative_decoding": None}


GIVEN: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "bias": ({"logit_bias": {"5": 1, "7": -2.5}}, {"logit_bias": ((5, 1.0), (7, -2.5))}),
    "bad words": (
        {"bad_words": ["ab", " c"]},
        {"bad_words_ids": ((97, 98), (32, 97, 98), (99,), (32, 99))},
    ),
    "drafts": ({"speculative": {"num_tokens": 0}}, {"num_speculative_tokens": 0}),
    "nulls": (
        {"logit_bias": None, "bad_words": None, "speculative": None, "presence_penalty": None},
        {},
    ),
    "neutral": ({"logit_bias": {}, "bad_words": [], "speculative": {}}, {}),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_an_option_reaches_the_engine(fake: Served, seen: list[Request], kind: str) -> None:
    given, expected = GIVEN[kind]
    fake.ask("/v1/completions", prompt="a", max_tokens=3, seed=1, **given)
    fake.ask("/v1/chat/completions", messages=HELLO, max_tokens=3, seed=1, **given)
    assert [request.sampling for request in seen] == [
        SamplingParams(max_tokens=3, seed=1, **expected)
    ] * 2


def test_a_salt_reaches_the_engine_from_every_endpoint(fake: Served, seen: list[Request]) -> None:
    fake.ask("/v1/completions", prompt=["a", "b"], cache_salt="x")
    fake.ask("/v1/chat/completions", messages=HELLO, cache_salt="x")
    fake.ask("/generate", text=["a", "b"], cache_salt=["y", "z"])
    fake.ask("/generate", text="a")
    assert [request.cache_salt for request in seen] == ["x", "x", "x", "y", "z", ""]
