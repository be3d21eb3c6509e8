"""Options that this release has not are refused by name; docs/request-options.md lists them."""

import json
from typing import Any, get_args, get_origin

import pytest
from client_types import kinds, names
from fake_server import Served
from openai.types import chat, completion_create_params
from openai.types.chat import chat_completion_content_part_image_param as image_param
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.shared_params import FunctionDefinition
from pydantic import BaseModel

from eagle3_tools.reference import ROOT
from serve.openai import protocol, tools
from serve.openai.content import BREAKPOINT, IMAGE, TEXT, ImagePart, ImageURL, TextPart
from serve.openai.unsupported import CHAT, COMPLETION, INSTEAD, MESSAGE, STREAM
from serve.sglang.protocol import NEUTRAL, NEUTRAL_SAMPLING

HELLO = {"role": "user", "content": "abc"}
BODIES: dict[str, tuple[str, dict[str, Any], dict[str, tuple[object, ...]]]] = {
    "completions": ("/v1/completions", {"prompt": "abc", "max_tokens": 1}, COMPLETION),
    "chat": (
        "/v1/chat/completions",
        {"messages": [HELLO], "max_tokens": 1},
        CHAT,
    ),
    "/generate": ("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 1}}, NEUTRAL),
}
WITHOUT_EFFECT = {"metadata", "prompt_cache_key", "safety_identifier", "user"}
"""Of OpenAI's options those that change no answer."""
OF_CLIENT: list[tuple[type[BaseModel], Any, Any]] = [
    (protocol.CompletionRequest, completion_create_params.CompletionCreateParams, COMPLETION),
    (protocol.ChatCompletionRequest, chat_create_params.CompletionCreateParams, CHAT),
    (protocol.StreamOptions, chat.ChatCompletionStreamOptionsParam, STREAM),
    (tools.Tool, chat.ChatCompletionFunctionToolParam, {}),
    (tools.Function, FunctionDefinition, {"description": "the template's"}),
    (TextPart, chat.ChatCompletionContentPartTextParam, {BREAKPOINT: "no effect"}),
    (ImagePart, chat.ChatCompletionContentPartImageParam, {BREAKPOINT: "no effect"}),
    (ImageURL, image_param.ImageURL, {}),
    (
        protocol.ChatMessage,
        chat.ChatCompletionMessageParam,
        MESSAGE | dict.fromkeys(("name", "tool_calls", "tool_call_id")),
    ),
]
"""Bodies and parts of them, the types that OpenAI's client has for them, and the names of what is
refused, or left to the template."""
PLACES = {place: neutral for place, (_, _, neutral) in BODIES.items()} | {
    "sampling_params": NEUTRAL_SAMPLING
}


def rows() -> list[str]:
    """The lines of the table, an option each; null passes always and is left out."""
    passes: dict[str, dict[str, str]] = {}
    for place, neutral in PLACES.items():
        for name, values in neutral.items():
            sets = ", ".join(f"`{json.dumps(v)}`" for v in values if v is not None)
            passes.setdefault(name, {})[place] = sets
    for sets in passes.values():
        assert len(set(sets.values())) == 1, sets
    return [
        f"| `{name}` | {', '.join(sets)} | {next(iter(sets.values()))} | {INSTEAD.get(name, '')} |"
        for name, sets in passes.items()
    ]


def test_the_docs_list_every_refused_option() -> None:
    text = (ROOT / "docs/request-options.md").read_text(encoding="utf-8")
    section = text.partition("## Refused by name")[2].partition("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("| `")] == rows()
    assert set(INSTEAD) <= {name for neutral in PLACES.values() for name in neutral}


@pytest.mark.parametrize("place", BODIES)
def test_neutral_values_pass_and_others_are_refused_by_name(fake: Served, place: str) -> None:
    path, body, neutral = BODIES[place]
    for name, values in neutral.items():
        error = fake.refusal(path, body | {name: "unheard of"})
        assert (error["param"], error["code"]) == (name, "unsupported_option")
        assert INSTEAD.get(name, "leave it out") in error["message"]
        for value in values:
            fake.ask(path, **body | {name: value})


def test_a_priority_other_than_the_default_is_refused(fake: Served) -> None:
    for path, body, _ in BODIES.values():
        for value in (1, -1, "high"):
            assert fake.refusal(path, body | {"priority": value})


@pytest.mark.parametrize(
    ("model", "typed", "others"), OF_CLIENT, ids=[model.__name__ for model, _, _ in OF_CLIENT]
)
def test_every_option_of_openais_client_is_known(
    model: type[BaseModel], typed: Any, others: dict[str, Any]
) -> None:
    fields = set(model.model_fields)
    assert names(typed) <= fields | set(others) | WITHOUT_EFFECT
    assert not WITHOUT_EFFECT & fields


@pytest.mark.parametrize("name", MESSAGE)
def test_what_no_message_of_these_models_has_is_refused_by_name(fake: Served, name: str) -> None:
    places = {"/v1/chat/completions": "messages", "/tokenize": "messages", "/v1/responses": "input"}
    for path, field in places.items():
        said = {"role": "assistant", "content": "b", name: True}
        body: dict[str, Any] = {field: [HELLO, said]}
        error = fake.refusal(path, body)
        assert (error["param"], error["code"]) == (f"{field}.{name}", "unsupported_option")
        for value in MESSAGE[name]:
            said[name] = value
            fake.ask(path, **body)


def test_a_prompt_that_chats_do_not_have_is_not_tokenized(fake: Served) -> None:
    given: dict[str, Any] = {"continue_final_message": True, "documents": [1]}
    for name, value in given.items():
        for path in ("/v1/chat/completions", "/tokenize"):
            body = {"messages": [HELLO], name: value}
            assert fake.refusal(path, body)["param"] == name


OF_KINDS: dict[str, tuple[Any, set[str], Any]] = {
    "messages": (
        chat.ChatCompletionContentPartParam,
        {TEXT, IMAGE},
        lambda kind: [{"role": "user", "content": [{"type": kind, kind: {}}]}],
    ),
    "tool_choice": (
        chat.ChatCompletionToolChoiceOptionParam,
        {"function", "allowed_tools"},
        lambda kind: {"type": kind, kind: {"name": "f"}},
    ),
    "tools": (chat.ChatCompletionToolUnionParam, {"function"}, lambda kind: [{"type": kind}]),
}
"""Fields whose parts have a type, the types that are read, and a value of another."""


@pytest.mark.parametrize("field", OF_KINDS)
def test_every_kind_of_part_tool_and_choice_is_read_or_refused_by_name(
    fake: Served, field: str
) -> None:
    union, read, value_of = OF_KINDS[field]
    assert read < kinds(union)
    for kind in kinds(union) - read:
        error = fake.refusal("/v1/chat/completions", BODIES["chat"][1] | {field: value_of(kind)})
        assert error["param"] == field and repr(kind) in error["message"]


def test_the_modes_of_choice_are_known() -> None:
    (modes,) = (m for m in get_args(chat.ChatCompletionToolChoiceOptionParam) if get_origin(m))
    assert set(get_args(modes)) == {"none", "auto", "required"}


def test_a_breakpoint_of_the_cache_changes_nothing(fake: Served) -> None:
    def asking(**mark: Any) -> dict[str, Any]:
        part = {"type": "text", "text": "abc", **mark}
        return {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1, "seed": 0}

    answers = []
    for mark in ({}, {BREAKPOINT: {"mode": "explicit", "ttl": "12h"}}, {BREAKPOINT: None}):
        answer = fake.ask("/v1/chat/completions", **asking(**mark))
        answers.append((answer["choices"], answer["usage"]["prompt_tokens"]))
    assert answers[0] == answers[1] == answers[2]
    error = fake.refusal("/v1/chat/completions", asking(**{BREAKPOINT: "here"}))
    assert BREAKPOINT in error["message"]
