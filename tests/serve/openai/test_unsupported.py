"""Options that this release has not are refused by name; docs/request-options.md lists them."""

import json
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from fake_server import Served
from openai.types import completion_create_params
from openai.types.chat import (
    ChatCompletionContentPartImageParam,
    ChatCompletionContentPartParam,
    ChatCompletionContentPartTextParam,
    ChatCompletionFunctionToolParam,
    ChatCompletionMessageParam,
    ChatCompletionStreamOptionsParam,
    ChatCompletionToolChoiceOptionParam,
    ChatCompletionToolUnionParam,
    chat_completion_content_part_image_param,
)
from openai.types.chat import completion_create_params as chat_create_params
from openai.types.shared_params import FunctionDefinition
from pydantic import BaseModel

from docs.generator import ROOT
from serve.openai.content import BREAKPOINT, IMAGE, TEXT, ImagePart, ImageURL, TextPart
from serve.openai.protocol import (
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    StreamOptions,
)
from serve.openai.tools import Function, Tool
from serve.openai.unsupported import CHAT, COMPLETION, INSTEAD, MESSAGE, STREAM
from serve.sglang.protocol import NEUTRAL, NEUTRAL_SAMPLING

BODIES: dict[str, tuple[str, dict[str, Any], dict[str, tuple[object, ...]]]] = {
    "completions": ("/v1/completions", {"prompt": "abc", "max_tokens": 1}, COMPLETION),
    "chat": (
        "/v1/chat/completions",
        {"messages": [{"role": "user", "content": "abc"}], "max_tokens": 1},
        CHAT,
    ),
    "/generate": ("/generate", {"text": "abc", "sampling_params": {"max_new_tokens": 1}}, NEUTRAL),
}
WITHOUT_EFFECT = {"metadata", "prompt_cache_key", "safety_identifier", "user"}
"""Of OpenAI's options those that change no answer."""
OF_CLIENT: list[tuple[type[BaseModel], Any, Any]] = [
    (CompletionRequest, completion_create_params.CompletionCreateParams, COMPLETION),
    (ChatCompletionRequest, chat_create_params.CompletionCreateParams, CHAT),
    (StreamOptions, ChatCompletionStreamOptionsParam, STREAM),
    (Tool, ChatCompletionFunctionToolParam, {}),
    (Function, FunctionDefinition, {"description": "the template's"}),
    (TextPart, ChatCompletionContentPartTextParam, {BREAKPOINT: "no effect"}),
    (ImagePart, ChatCompletionContentPartImageParam, {BREAKPOINT: "no effect"}),
    (ImageURL, chat_completion_content_part_image_param.ImageURL, {}),
    (
        ChatMessage,
        ChatCompletionMessageParam,
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


def names(typed: Any) -> set[str]:
    """The options of a typed dictionary, or of all in a union."""
    members = get_args(typed) or (typed,)
    return {name for member in members for name in get_type_hints(member)}


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
        body: dict[str, Any] = {field: [{"role": "user", "content": "abc"}, said]}
        error = fake.refusal(path, body)
        assert (error["param"], error["code"]) == (f"{field}.{name}", "unsupported_option")
        for value in MESSAGE[name]:
            said[name] = value
            fake.ask(path, **body)


def test_a_prompt_that_chats_do_not_have_is_not_tokenized(fake: Served) -> None:
    given: dict[str, Any] = {"continue_final_message": True, "documents": [1]}
    for name, value in given.items():
        for path in ("/v1/chat/completions", "/tokenize"):
            body = {"messages": [{"role": "user", "content": "abc"}], name: value}
            assert fake.refusal(path, body)["param"] == name


def kinds_of(union: Any) -> set[str]:
    """What the fields `type` of a union's typed dictionaries are."""
    typed = (member for member in get_args(union) if get_origin(member) is not Literal)
    return {get_args(get_type_hints(member)["type"])[0] for member in typed}


def refused(fake: Served, body: dict[str, Any]) -> dict[str, Any]:
    path, good, _ = BODIES["chat"]
    return fake.refusal(path, good | body)


def test_parts_of_other_kinds_are_refused(fake: Served) -> None:
    kinds = kinds_of(ChatCompletionContentPartParam)
    assert {TEXT, IMAGE, "input_audio"} < kinds
    for kind in kinds - {TEXT, IMAGE}:
        message = {"role": "user", "content": [{"type": kind, kind: {}}]}
        error = refused(fake, {"messages": [message]})
        assert error["param"] == "messages" and repr(kind) in error["message"]


def test_a_breakpoint_of_the_cache_changes_nothing(fake: Served) -> None:
    path, good, _ = BODIES["chat"]
    answers = []
    for mark in ({}, {BREAKPOINT: {"mode": "explicit", "ttl": "12h"}}, {BREAKPOINT: None}):
        message = {"role": "user", "content": [{"type": "text", "text": "abc", **mark}]}
        answer = fake.ask(path, **good | {"messages": [message], "seed": 0})
        answers.append((answer["choices"], answer["usage"]["prompt_tokens"]))
    assert answers[0] == answers[1] == answers[2]
    message = {"role": "user", "content": [{"type": "text", "text": "abc", BREAKPOINT: "here"}]}
    assert BREAKPOINT in refused(fake, {"messages": [message]})["message"]


def test_every_choice_of_tools_is_read_or_refused_by_name(fake: Served) -> None:
    kinds = kinds_of(ChatCompletionToolChoiceOptionParam)
    assert {"function", "allowed_tools"} < kinds
    for kind in kinds - {"function", "allowed_tools"}:
        error = refused(fake, {"tool_choice": {"type": kind, kind: {"name": "f"}}})
        assert error["param"] == "tool_choice" and repr(kind) in error["message"]
    (modes,) = (m for m in get_args(ChatCompletionToolChoiceOptionParam) if get_origin(m))
    assert set(get_args(modes)) == {"none", "auto", "required"}


def test_tools_of_other_kinds_are_refused(fake: Served) -> None:
    kinds = kinds_of(ChatCompletionToolUnionParam)
    assert {"custom", "function"} <= kinds
    for kind in kinds - {"function"}:
        error = refused(fake, {"tools": [{"type": kind}]})
        assert error["param"] == "tools" and kind in error["message"]
