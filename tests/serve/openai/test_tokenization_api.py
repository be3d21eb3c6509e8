"""/tokenize, /detokenize and /tokenizer_info: what a client without the tokenizer gets."""

import json
from pathlib import Path

import pytest
from fake_engine import FakeEngine
from fake_server import Served, served_by

from convert.text.tokenizer import load_tokenizer
from serve.demo import demo_target_dir

HELLO = [{"role": "user", "content": "hello"}, {"role": "user", "content": "you"}]


def test_a_prompt_is_tokenized_in_vllms_form(fake: Served) -> None:
    body = {"model": "fake", "prompt": "abc", "add_special_tokens": False}
    answer = fake.http.post("/tokenize", json=body).json()
    assert answer == {"tokens": [97, 98, 99], "count": 3, "max_model_len": 256, "token_strs": None}
    tokenized = fake.http.post("/tokenize", json=body | {"return_token_strs": True}).json()
    assert tokenized["token_strs"] == ["a", "b", "c"]


def test_messages_are_tokenized_as_the_chat_endpoint_runs_them(fake: Served) -> None:
    body = {"messages": HELLO, "chat_template_kwargs": {"suffix": "!?"}}
    ids = fake.http.post("/tokenize", json=body).json()["tokens"]
    assert bytes(ids).decode() == "hello\nyou!?"
    body = {"messages": HELLO, "max_tokens": 1, "return_token_ids": True}
    chat = fake.http.post("/v1/chat/completions", json=body).json()
    plain = fake.http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
    assert chat["prompt_token_ids"] == plain


def test_content_parts_are_tokenized_as_text(fake: Served) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    body = {"messages": [{"role": "user", "content": parts}]}
    assert fake.http.post("/tokenize", json=body).json()["tokens"] == [97, 98]


def test_ids_become_the_text_they_came_from(fake: Served) -> None:
    assert fake.http.post("/detokenize", json={"tokens": [97, 32]}).json() == {"prompt": "a "}


@pytest.mark.parametrize(
    "path, body",
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": HELLO}),
        ("/tokenize", {"prompt": ["a"]}),
        ("/tokenize", {"prompt": "\u00e9"}),
        ("/tokenize", {"messages": []}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": [2**40]}),
        ("/detokenize", {"tokens": "97"}),
    ],
)
def test_bad_bodies_are_400(fake: Served, path: str, body: dict) -> None:
    answer = fake.http.post(path, json=body)
    assert answer.status_code == 400 and answer.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_a_model_that_is_not_served_is_404(fake: Served, path: str) -> None:
    body = {"model": "gpt-9", "prompt": "a", "tokens": [1]}
    assert fake.http.post(path, json=body).status_code == 404


def test_a_client_can_do_all_that_the_tokenizer_of_the_checkpoint_does() -> None:
    directory: Path = demo_target_dir()
    tokenizer = load_tokenizer(directory)
    with served_by(FakeEngine(), tokenizer) as server:
        info = server.http.get("/tokenizer_info").json()
        assert info["chat_template"] == (directory / "chat_template.jinja").read_text()
        config = json.loads((directory / "tokenizer_config.json").read_text())
        assert info["eos_token"] == config["eos_token"]
        body = {"prompt": info["eos_token"], "add_special_tokens": False}
        ids = server.http.post("/tokenize", json=body).json()["tokens"]
        assert len(ids) == 1 and ids[0] in tokenizer.eos_token_ids
        text = "naïve 數字 12" + info["eos_token"]
        ids = server.http.post("/tokenize", json={"prompt": text}).json()["tokens"]
        assert server.http.post("/detokenize", json={"tokens": ids}).json() == {"prompt": text}
        chat = server.http.post("/tokenize", json={"messages": HELLO}).json()["tokens"]
        assert chat == tokenizer.encode_chat(HELLO)
        open_end = {"messages": HELLO, "add_generation_prompt": False}
        shorter = server.http.post("/tokenize", json=open_end).json()["tokens"]
        assert shorter == chat[: len(shorter)] and len(shorter) < len(chat)
