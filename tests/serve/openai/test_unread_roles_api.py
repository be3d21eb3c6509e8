"""Nothing that somebody said vanishes in a template that reads the system's first message alone, as
MiniMax-M2.5's does, and no role but those of the conversation."""

from typing import Any

import pytest
from called_tools import prompt_of, saying
from chat_tokenizers import kimi, with_template
from fake_server import Serve, Served

FIRST_ALONE = """\
{%- set said = messages[1:] if messages[0].role == 'system' else messages -%}
{%- if messages[0].role == 'system' -%}S:{{ messages[0].content }};{%- endif -%}
{%- for m in said -%}
{%- if m.role == 'user' -%}U:{{ m.content }};{%- elif m.role == 'assistant' -%}A:{{ m.content }};
{%- endif -%}
{%- endfor -%}
"""
CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "Hello."}


@pytest.fixture
def reading_one(serve: Serve) -> Served:
    """A server of a model with such a template."""
    return serve(saying("Hi."), tokenizer=with_template(kimi(), FIRST_ALONE))


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content}


def test_what_system_and_developer_say_first_is_one_message(reading_one: Served) -> None:
    for roles in (("system", "developer"), ("developer", "system")):
        messages = [said(roles[0], "Be brief."), said(roles[1], "Be kind."), USER]
        reading_one.ask(CHAT, messages=messages)
        assert prompt_of(reading_one) == "S:Be brief.\n\nBe kind.;U:Hello.;"


def test_a_developers_message_is_the_systems(say: Serve) -> None:
    server, prompts = say("Hi."), []
    for role in ("system", "developer"):
        server.ask(CHAT, messages=[said(role, "Be brief."), USER, said(role, "Be kind."), USER])
        prompts.append(prompt_of(server))
    assert prompts[0] == prompts[1] and "Be kind." in prompts[0]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [USER, said("system", "Be kind."), USER]}),
        (CHAT, {"messages": [USER, said("developer", "Be kind."), USER]}),
        (CHAT, {"messages": [said("critic", "Be kind."), USER]}),
        ("/tokenize", {"messages": [USER, said("system", "Be kind."), USER]}),
        ("/v1/messages", {"max_tokens": 9, "messages": [USER, said("system", "Be kind."), USER]}),
        ("/v1/messages/count_tokens", {"messages": [USER, said("system", "Be kind."), USER]}),
        ("/v1/responses", {"input": [USER, said("developer", "Be kind."), USER]}),
    ],
)
def test_what_the_template_would_leave_out_is_refused(
    reading_one: Served, path: str, body: dict[str, Any]
) -> None:
    answer = reading_one.http.post(path, json=body)
    assert answer.status_code == 400
    assert "the chat template shows no message of the role" in answer.text
