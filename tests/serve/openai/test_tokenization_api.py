"""/tokenize, /detokenize and /tokenizer_info: what a client without the tokenizer gets."""

import json
from pathlib import Path
from typing import Any

from fake_engine import FakeEngine
from fake_server import Served, served_by

from convert.text.tokenizer import load_tokenizer
from serve.demo import demo_target_dir

HELLO: Any = [{"role": "user", "content": "hello"}, {"role": "user", "content": "you"}]


def test_a_prompt_is_tokenized_in_vllms_form(fake: Served) -> None:
    body = {"model": "fake", "prompt": "abc", "add_special_tokens": False}
    told = {"tokens": [97, 98, 99], "count": 3, "max_model_len": 256}
    assert fake.ask("/tokenize", **body) == told | {"token_strs": None}
    named = fake.ask("/tokenize", **body, return_token_strs=True)
    assert named["token_strs"] == ["a", "b", "c"]
    assert fake.ask("/detokenize", tokens=[97, 32]) == {"prompt": "a "}


def test_messages_are_tokenized_as_the_chat_endpoint_runs_them(fake: Served) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]
    for content in ("hello", parts):
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": content}, HELLO[1]]}
        asked["chat_template_kwargs"] = {"suffix": "!?"}
        ids = fake.ask("/tokenize", **asked)["tokens"]
        assert bytes(ids).decode() == "hello\nyou!?"
    chat = fake.ask("/v1/chat/completions", messages=HELLO, max_tokens=1, return_token_ids=True)
    assert chat["prompt_token_ids"] == fake.ask("/tokenize", messages=HELLO)["tokens"]


def test_bad_bodies_are_400(fake: Served) -> None:
    bad: list[dict[str, Any]] = [{}, {"prompt": "a", "messages": HELLO}, {"prompt": ["a"]}]
    for body in (*bad, {"prompt": "\u00e9"}, {"messages": []}):
        assert fake.refusal("/tokenize", body)["message"]
    for body in ({}, {"tokens": [-1]}, {"tokens": [2**40]}, {"tokens": "97"}):
        assert fake.refusal("/detokenize", body)["message"]
    for path in ("/tokenize", "/detokenize"):
        assert fake.refusal(path, {"model": "gpt-9", "prompt": "a", "tokens": [1]}, 404)


def test_a_client_can_do_all_that_the_tokenizer_of_the_checkpoint_does() -> None:
    directory: Path = demo_target_dir()
    tokenizer = load_tokenizer(directory)
    with served_by(FakeEngine(), tokenizer) as server:
        info = server.http.get("/tokenizer_info").json()
        assert info["chat_template"] == (directory / "chat_template.jinja").read_text()
        config = json.loads((directory / "tokenizer_config.json").read_text())
        assert info["eos_token"] == config["eos_token"]
        end = {"prompt": info["eos_token"], "add_special_tokens": False}
        (token_id,) = server.ask("/tokenize", **end)["tokens"]
        assert token_id in tokenizer.eos_token_ids
        text = "naïve 數字 12" + info["eos_token"]
        ids = server.ask("/tokenize", prompt=text)["tokens"]
        assert server.ask("/detokenize", tokens=ids) == {"prompt": text}
        chat = server.ask("/tokenize", messages=HELLO)["tokens"]
        assert chat == tokenizer.encode_chat(HELLO)
        open_end = {"messages": HELLO, "add_generation_prompt": False}
        shorter = server.ask("/tokenize", **open_end)["tokens"]
        assert shorter == chat[: len(shorter)] and len(shorter) < len(chat)
