"""A chat template can't hold up or end the server, whatever it does."""

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

import pytest
from chat_tokenizers import kimi
from fake_engine import FakeEngine
from fake_server import Served

from convert.text.chat_template import compile_template
from convert.text.tiktoken_file import SpecialToken
from convert.text.typescript_tools import declare_tools, sorted_by_key
from serve.chat_format.sandboxed_templates import sandboxed

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "<|im_end|>"}]
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture
def owner() -> Iterator[ExitStack]:
    """It ends the sandboxes of a test."""
    with ExitStack() as owner:
        yield owner


def test_what_is_rendered_apart_is_what_is_rendered_here(owner: ExitStack) -> None:
    text = "{% for m in messages %}<|im_end|>{{ m['content'] }}{{ x }}{{ tools }}{% endfor %}é"
    plain = kimi()
    plain = replace(plain, template=compile_template(text, "the test's"), template_text=text)
    for options in ({}, {"x": "\ud800<|im_"}, {"x": [1, None, {"<|im_user|>": "🙂"}]}):
        assert sandboxed(plain, owner).encode_chat(HELLO, **options) == plain.encode_chat(
            HELLO, **options
        )


def test_declared_tools_hold_no_special_token_wherever_they_are_rendered(owner: ExitStack) -> None:
    """Also where a special text is in several fields, or the declaration's own characters are a
    part of it."""
    text = "{{ x }}{{ tools_ts_str }}{{ tools | tojson }}"
    template = compile_template(text, "the test's")
    special = [*kimi().special_tokens, SpecialToken(10**6, "b?: c", True)]
    plain = replace(kimi(), template=template, template_text=text, special_tokens=tuple(special))
    properties = {"<|im_": {"type": "end|>"}, "<|im_end|>": {"enum": ["[EOS]"]}, "b": {"type": "c"}}
    function = {
        "name": "<|im_",
        "description": "end|>\ud800",
        "parameters": {"properties": properties},
    }
    tools = [{"type": "function", "function": function}]
    declared = declare_tools(sorted_by_key(tools))
    shown = f"<|im_{declared}{json.dumps(sorted_by_key(tools), ensure_ascii=False)}"
    assert "b?: c" in shown and "<|im_end|>" in shown
    for tokenizer in (plain, sandboxed(plain, owner)):
        assert tokenizer.encode_chat([], tools=tools, x="<|im_") == plain.encode(shown)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (LOOP, "took more than 0.5 seconds"),
        ("{{ 10 ** (10 ** 8) }}", "took more than 0.5 seconds"),
        ("{{ 'x' * 10 ** 12 }}", "memory"),
        ("{{ ('x' * 10 ** 9) * 3 }}", "memory"),
        ("{% for a in range(99999) %}{{ 'x' * 999 }}{% endfor %}", "more than 16777216 characters"),
        ("{{ messages.nothing.at.all }}", "refuses these messages"),
        ("{{ 'x' * n }}", "memory"),
    ],
)
def test_a_template_that_takes_too_much_is_400_and_the_next_chat_an_answer(
    serve, owner: ExitStack, template: str, message: str
) -> None:
    good = "{% if messages|length == 1 %}" + template + "{% else %}hi{% endif %}"
    plain = replace(kimi(), template=compile_template(good, "the test's"), template_text=good)
    server: Served = serve(FakeEngine(), tokenizer=sandboxed(plain, owner, 0.5))
    with ThreadPoolExecutor() as pool:
        body = {"messages": HELLO, "chat_template_kwargs": {"n": 10**12}}
        answer = pool.submit(server.http.post, CHAT, json=body)
        began = time.monotonic()
        assert server.http.get("/health").status_code == 200
        assert time.monotonic() - began < 0.4
        assert answer.result().status_code == 400 and message in answer.result().text
    next_one = server.http.post("/tokenize", json={"messages": HELLO * 2})
    assert next_one.status_code == 200 and next_one.json()["count"] > 0
