"""POST /v1/chat/completions as clients see it."""

import pytest
from fake_engine import MAX_MODEL_LEN, expected_answer
from fake_server import Served

HELLO = [{"role": "user", "content": "hello"}]


def test_answer_is_the_engines(fake: Served) -> None:
    answer = fake.openai.chat.completions.create(
        model="fake", messages=[{"role": "user", "content": "hello"}], max_tokens=7, seed=3
    )
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == expected_answer("hello", 3, 7)
    assert answer.usage is not None and answer.usage.completion_tokens == 7


def test_stream_has_the_role_in_the_chunk_of_the_first_token(fake: Served) -> None:
    stream = fake.openai.chat.completions.create(
        model="fake",
        messages=[{"role": "user", "content": "hello"}],
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
def test_content_is_a_string_or_text_parts(fake: Served, content: object) -> None:
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 4, "seed": 0}
    choice = fake.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["message"]["content"] == expected_answer("hello", 0, 4)


def test_max_tokens_default_fills_the_context(fake: Served) -> None:
    body = fake.http.post("/v1/chat/completions", json={"messages": HELLO}).json()
    assert body["usage"]["total_tokens"] == MAX_MODEL_LEN


def test_max_completion_tokens_wins_over_max_tokens(fake: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 9, "max_completion_tokens": 2}
    answer = fake.http.post("/v1/chat/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 2


def test_template_options_reach_the_template(fake: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 4, "seed": 0, "chat_template_kwargs": {"suffix": "z"}}
    choice = fake.http.post("/v1/chat/completions", json=body).json()["choices"][0]
    assert choice["message"]["content"] == expected_answer("helloz", 0, 4)


def test_token_ids_on_request(fake: Served) -> None:
    body = {"messages": HELLO, "max_tokens": 4, "seed": 0, "return_token_ids": True}
    answer = fake.http.post("/v1/chat/completions", json=body).json()
    assert bytes(answer["choices"][0]["token_ids"]).decode() == expected_answer("hello", 0, 4)
    assert bytes(answer["prompt_token_ids"]) == b"hello"
