"""`skip_special_tokens: false`: the text is the tokenizer's own decode, special tokens included."""

from typing import Any

import pytest
from chat_tokenizers import kimi
from fake_server import Serve, Served
from scripted_engine import ScriptedEngine

SHOWN = "hé<|im_user|>y<|im_system|> you"
IDS = kimi().encode(SHOWN, add_special=True)
END = kimi().eos_token_ids[-1]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"


@pytest.fixture
def server(serve: Serve) -> Served:
    return serve(ScriptedEngine(answers=[IDS], step_s=0.002), tokenizer=kimi())


def ask(server: Served, path: str = COMPLETIONS, **given: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    body = {"messages": messages} if path == CHAT else {"prompt": "hi"}
    return server.ask(path, **body | {"skip_special_tokens": False} | given)["choices"][0]


def test_special_tokens_are_text_where_they_are_not_skipped(server: Served) -> None:
    assert kimi().decode(IDS) == "héy you" and kimi().decode(IDS, skip_special=False) == SHOWN
    assert ask(server)["text"] == SHOWN
    assert ask(server, CHAT)["message"]["content"] == SHOWN
    for default in (None, True):
        assert ask(server, skip_special_tokens=default)["text"] == "héy you"
        chat = ask(server, CHAT, skip_special_tokens=default)
        assert chat["message"]["content"] == "héy you"


def test_streams_and_sglangs_sampling_params_have_it_too(server: Served) -> None:
    given = {"skip_special_tokens": False}
    events = server.events(COMPLETIONS, prompt="hi", **given)
    assert "".join(event["choices"][0]["text"] for event in events) == SHOWN
    assert server.ask("/generate", text="hi", sampling_params=given)["text"] == SHOWN


def test_the_id_that_ends_the_answer_is_text_only_where_it_is_included(server: Served) -> None:
    end = kimi().token_bytes(END).decode()
    choice = ask(server, include_stop_str_in_output=True, token_origins=True)
    assert choice["text"] == SHOWN + end == "".join(one["text"] for one in choice["token_origins"])


def test_a_stop_string_may_be_a_special_token(server: Served) -> None:
    choice = ask(server, stop="<|im_user|>")
    assert (choice["text"], choice["stop_reason"]) == ("hé", "<|im_user|>")
    assert ask(server, stop="<|im_user|>", skip_special_tokens=True)["text"] == "héy you"


def test_origins_and_offsets_are_those_of_the_text(server: Served) -> None:
    choice = ask(server, token_origins=True, logprobs=0)
    assert "".join(one["text"] for one in choice["token_origins"]) == SHOWN
    before = [kimi().decode(IDS[:count], skip_special=False) for count in range(len(IDS))]
    starts = [len(text.rstrip("\ufffd")) for text in before]
    assert choice["logprobs"]["text_offset"][: len(IDS)] == starts


def test_reasoning_and_content_part_where_their_marks_are(serve: Serve) -> None:
    text = f"<think>{SHOWN}</think>{SHOWN}!"
    answers = [kimi().encode(text, add_special=True)]
    message = ask(serve(ScriptedEngine(answers=answers), tokenizer=kimi()), CHAT)["message"]
    assert (message["reasoning"], message["content"]) == (SHOWN, SHOWN + "!")
