"""Reasoning of earlier turns in the prompt, for all ways in which clients ask for it."""

from functools import cache
from typing import Any

import pytest
from called_tools import CHAT_TOOLS, prompt_of
from chat_tokenizers import MINIMAX_TEMPLATE, kimi, minimax, with_template
from fake_server import Serve, Served

from convert.text.tokenizer import Tokenizer
from serve.telemetry.logs import warn_once

TEMPLATE = """\
{%- macro thought(m) -%}REASONING{%- endmacro -%}
{%- set plain = namespace(last=-1) -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' and not m.get('tool_calls') -%}
{%- set plain.last = loop.index0 -%}
{%- endif -%}
{%- endfor -%}
{%- if tools -%}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{%- endif -%}
{%- for m in messages -%}
{%- if m.role == 'user' -%}<|im_user|>{%- elif m.role == 'assistant' -%}<|im_assistant|>
{%- else -%}<|im_system|>{%- endif -%}
{{- m.get('name') or m.role -}}<|im_middle|>
{%- if m.role == 'assistant' -%}
<think>{%- if KEPT -%}{{ thought(m) }}{%- endif -%}</think>{{ m.content or '' }}
{%- if m.get('tool_calls') -%}<|tool_calls_section_begin|>
{%- for call in m.tool_calls -%}
{%- set given = call.function.arguments -%}
<|tool_call_begin|>{{ call.id }}<|tool_call_argument_begin|>
{{- given if given is string else given | tojson -}}<|tool_call_end|>
{%- endfor -%}
<|tool_calls_section_end|>{%- endif -%}
{%- elif m.role == 'tool' -%}## Return of {{ m.tool_call_id }}{{ '\\n' }}{{ m.content }}
{%- else -%}{{ m.content or '' }}{%- endif -%}
<|im_end|>
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|><think>SWITCH{%- endif -%}
"""
ONE_FIELD = "{{ m.get('reasoning_content', '') }}"
TWO_FIELDS = "{{ m.reasoning if 'reasoning' in m else m.get('reasoning_content', '') }}"
SWITCH = "{%- if thinking is defined and thinking is false -%}</think>{%- endif -%}"
BEHIND = "loop.index0 > plain.last"
PARTS = {
    "K2.5": (ONE_FIELD, BEHIND, SWITCH),
    "K2.6": (TWO_FIELDS, f"({BEHIND} or preserve_thinking is true)", SWITCH),
    "K2.7-Code": (TWO_FIELDS, "true", ""),
}


@cache
def kimi_like(name: str) -> Tokenizer:
    """A template that reads what this release's does, in texts of ours.

    The releases differ in the switch, in the field that reasoning is read from and in whose turns
    it is kept."""
    text = TEMPLATE
    for place, part in zip(("REASONING", "KEPT", "SWITCH"), PARTS[name], strict=True):
        text = text.replace(place, part)
    return with_template(kimi(), text)


USER = {"role": "user", "content": "hi"}
EARLIER = "An earlier thought."
ON = {"type": "enabled"}
KEEP = {"thinking": {**ON, "keep": "all"}}
PRESERVE = {"chat_template_kwargs": {"preserve_thinking": True}}
CHAT = "/v1/chat/completions"
CLEARS_NONE = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
HISTORIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [USER, {"role": "assistant", "content": "b", "reasoning": EARLIER}, USER]},
    "/v1/responses": {
        "input": [
            USER,
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": EARLIER}]},
            {"role": "assistant", "content": "b"},
            USER,
        ]
    },
    "/v1/messages": {
        "max_tokens": 9,
        "messages": [
            USER,
            {"role": "assistant", "content": [{"type": "thinking", "thinking": EARLIER}]},
            USER,
        ],
    },
}
HISTORIES["/tokenize"] = HISTORIES[CHAT]


def asked(server: Served, path: str, **body: Any) -> tuple[str, str | None]:
    """The prompt of a conversation, and the header of its answer."""
    answer = server.http.post(path, json=HISTORIES[path] | body)
    assert answer.status_code == 200, answer.text
    header = answer.headers.get("x-thinking-keep")
    if path != "/tokenize":
        return prompt_of(server), header
    return server.ask("/detokenize", tokens=answer.json()["tokens"])["prompt"], header


@pytest.mark.parametrize(
    ("release", "usually", "if_asked"),
    [("K2.5", False, False), ("K2.6", False, True), ("K2.7-Code", True, True)],
)
@pytest.mark.parametrize("path", HISTORIES)
def test_reasoning_is_kept_where_the_template_can(
    say: Serve, release: str, usually: bool, if_asked: bool, path: str
) -> None:
    """With other templates the wish changes nothing, and a header says so."""
    server = say("Fine.", tokenizer=kimi_like(release))
    for body in ({}, {"thinking": {**ON, "keep": None}}, {"thinking": ON}):
        prompt, header = asked(server, path, **body)
        assert ((EARLIER in prompt), header) == (usually, None)
    wishes: list[dict[str, Any]] = [KEEP, KEEP | {"stream": True}]
    wishes += [{"thinking": {"keep": "all"}}, {"thinking": {"type": None, "keep": "all"}}]
    if path == "/v1/messages":
        wishes += [{"context_management": CLEARS_NONE}]
    else:
        unsaid = {"chat_template_kwargs": {"preserve_thinking": None, "thinking": None}}
        wishes += [PRESERVE, KEEP | PRESERVE, KEEP | unsaid]
    for wish in wishes:
        kept, header = asked(server, path, **wish)
        assert ((EARLIER in kept), header) == (if_asked, None if if_asked else "unsupported")
        assert if_asked or kept == prompt


def test_templates_are_judged_by_what_they_show_not_by_their_models_name(say: Serve) -> None:
    """MiniMax's form has no switch; one that keeps all but the turns with calls does not keep."""
    for keeps, old, new in (
        (True, "", ""),
        (False, "if m.reasoning_content", "if m.reasoning_content and loop.last"),
        (False, "if m.reasoning_content", "if m.reasoning_content and not m.tool_calls"),
    ):
        tokenizer = with_template(minimax(), MINIMAX_TEMPLATE.replace(old, new))
        server = say("Fine.", chat_format="minimax_m2", tokenizer=tokenizer)
        body = HISTORIES[CHAT] | KEEP
        header = server.http.post(CHAT, json=body).headers.get("x-thinking-keep")
        assert header == (None if keeps else "unsupported")


def test_the_log_says_once_that_a_template_can_not_keep(
    say: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    warn_once.cache_clear()
    server = say("Fine.", tokenizer=kimi_like("K2.5"))
    asked(server, CHAT)
    assert "thinking.keep" not in caplog.text
    for path in HISTORIES:
        asked(server, path, **KEEP)
    assert caplog.text.count("thinking.keep") == 1


def test_the_default_request_of_kimi_code_is_answered(say: Serve) -> None:
    for release in PARTS:
        server = say("So.</think>Fine.", tokenizer=kimi_like(release))
        body: dict[str, Any] = {
            "tools": CHAT_TOOLS,
            "reasoning_effort": "high",
            "stream": True,
            "stream_options": {"include_usage": True},
            "max_completion_tokens": 20,
            "prompt_cache_key": "session",
        }
        asked(server, CHAT, **body, **KEEP)


@pytest.mark.parametrize(
    ("release", "body", "naming"),
    [
        ("K2.6", {"thinking": {**ON, "keep": "last"}}, "thinking.keep"),
        ("K2.6", {"thinking": {**ON, "keep": True}}, "thinking.keep"),
        ("K2.6", {**KEEP, "chat_template_kwargs": {"preserve_thinking": False}}, "preserve_"),
        ("K2.5", {**KEEP, "chat_template_kwargs": {"preserve_thinking": False}}, "preserve_"),
        ("K2.7-Code", {"chat_template_kwargs": {"preserve_thinking": False}}, "preserve_"),
        ("K2.7-Code", {"chat_template_kwargs": {"thinking": False}}, "no switch"),
        ("K2.7-Code", {"thinking": {"type": "disabled"}}, "no switch"),
        ("K2.5", {"thinking": ON, "chat_template_kwargs": {"enable_thinking": False}}, "enable_"),
    ],
)
def test_what_can_not_be_or_contradicts_itself_is_refused_by_name(
    say: Serve, release: str, body: dict[str, Any], naming: str
) -> None:
    server = say("Fine.", tokenizer=kimi_like(release))
    for path in (CHAT, "/v1/responses", "/tokenize"):
        assert naming in server.refusal(path, HISTORIES[path] | body)["message"]


def test_the_switch_is_known_by_the_names_of_other_engines(say: Serve) -> None:
    server = say("Fine.", tokenizer=kimi_like("K2.6"))
    for name in ("thinking", "enable_thinking"):
        for thinks, end in ((True, "<think>"), (False, "<think></think>")):
            prompt, _ = asked(server, CHAT, chat_template_kwargs={name: thinks})
            assert prompt.endswith(end)


@pytest.mark.parametrize("release", PARTS)
def test_reasoning_that_is_null_or_empty_is_left_out(say: Serve, release: str) -> None:
    server = say("Fine.", tokenizer=kimi_like(release))
    function = {"name": "weather", "arguments": "{}"}
    call = {"id": "x", "type": "function", "function": function}
    for reasoning, reasoning_content, shown in (
        *((None, None, ""), (None, "Real.", "Real."), ("Real.", None, "Real.")),
        *(("", "Real.", "Real."), (None, ..., ""), (..., None, "")),
    ):
        fields = {"reasoning": reasoning, "reasoning_content": reasoning_content}
        fields = {name: value for name, value in fields.items() if value is not ...}
        answer = {"role": "assistant", "content": None, "tool_calls": [call], **fields}
        for path in (CHAT, "/tokenize"):
            prompt, _ = asked(server, path, messages=[{**USER, "name": None}, answer])
            assert f"<think>{shown}</think>" in prompt and "None" not in prompt
