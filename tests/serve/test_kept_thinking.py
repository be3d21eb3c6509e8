"""Whether the reasoning of earlier turns is in the prompt, in the ways that clients ask for it."""

from collections.abc import Callable
from typing import Any

import pytest
from called_tools import CHAT_TOOLS, prompt_of
from chat_tokenizers import MINIMAX_TEMPLATE, minimax, with_template
from fake_server import Served
from kimi_templates import kimi_like

from serve.openai.prompts.thinking import say_unkept

Say = Callable[..., Served]
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
    tokens = {"tokens": answer.json()["tokens"]}
    return server.http.post("/detokenize", json=tokens).json()["prompt"], header


@pytest.mark.parametrize(
    ("release", "usually", "if_asked"),
    [("K2.5", False, False), ("K2.6", False, True), ("K2.7-Code", True, True)],
)
@pytest.mark.parametrize("path", HISTORIES)
def test_reasoning_is_kept_where_the_template_can(
    say: Say, release: str, usually: bool, if_asked: bool, path: str
) -> None:
    """Where it can't, the prompt is as without the wish, and a header says so."""
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


def test_templates_are_judged_by_what_they_show_not_by_their_models_name(say: Say) -> None:
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
    say: Say, caplog: pytest.LogCaptureFixture
) -> None:
    say_unkept.cache_clear()
    server = say("Fine.", tokenizer=kimi_like("K2.5"))
    asked(server, CHAT)
    assert "thinking.keep" not in caplog.text
    for path in HISTORIES:
        asked(server, path, **KEEP)
    assert caplog.text.count("thinking.keep") == 1


def test_the_default_request_of_kimi_code_is_answered(say: Say) -> None:
    for release in ("K2.5", "K2.6", "K2.7-Code"):
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
    say: Say, release: str, body: dict[str, Any], naming: str
) -> None:
    server = say("Fine.", tokenizer=kimi_like(release))
    for path in (CHAT, "/v1/responses", "/tokenize"):
        answer = server.http.post(path, json=HISTORIES[path] | body)
        assert answer.status_code == 400 and naming in answer.json()["error"]["message"]


@pytest.mark.parametrize("release", ["K2.5", "K2.6"])
def test_the_switch_is_known_by_the_names_of_other_engines(say: Say, release: str) -> None:
    server = say("Fine.", tokenizer=kimi_like(release))
    for name in ("thinking", "enable_thinking"):
        for thinks, end in ((True, "<think>"), (False, "<think></think>")):
            prompt, _ = asked(server, CHAT, chat_template_kwargs={name: thinks})
            assert prompt.endswith(end)


@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
@pytest.mark.parametrize("release", ["K2.5", "K2.6", "K2.7-Code"])
def test_reasoning_that_is_null_or_empty_is_left_out(say: Say, release: str, path: str) -> None:
    server = say("Fine.", tokenizer=kimi_like(release))
    function = {"name": "weather", "arguments": "{}"}
    call = {"id": "x", "type": "function", "function": function}
    for fields, shown in (
        ({"reasoning": None}, ""),
        ({"reasoning_content": None}, ""),
        ({"reasoning": None, "reasoning_content": None}, ""),
        ({"reasoning": None, "reasoning_content": "Real."}, "Real."),
        ({"reasoning": "Real.", "reasoning_content": None}, "Real."),
        ({"reasoning": "", "reasoning_content": "Real."}, "Real."),
    ):
        answer = {"role": "assistant", "content": None, "tool_calls": [call], **fields}
        prompt, _ = asked(server, path, messages=[{**USER, "name": None}, answer])
        assert f"<think>{shown}</think>" in prompt and "None" not in prompt
