"""Every option that OpenAI's own client knows of is obeyed or refused by its name."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
from fake_server import Served
from openai.types.responses import (
    FunctionToolParam,
    ResponseFunctionToolCallParam,
    ResponseIncludable,
    ResponseInputImageParam,
    ResponseInputItemParam,
    ResponseInputTextParam,
    ResponseTextConfigParam,
    ToolParam,
    response_create_params,
)
from openai.types.responses.response_create_params import (
    ResponseCreateParamsBase,
    ResponseCreateParamsStreaming,
    StreamOptions,
    ToolChoice,
)
from openai.types.responses.response_input_item_param import FunctionCallOutput
from openai.types.shared_params import Reasoning

from serve.openai.content import BREAKPOINT
from serve.openai.unsupported import STREAM
from serve.responses.items import KINDS, InputImage, InputText
from serve.responses.protocol import ResponseRequest
from serve.responses.tools import CHOICES
from serve.responses.tools import KINDS as TOOLS
from serve.responses.unsupported import CALL, REASONING, RESPONSE, TOOL

OBEYED = {"include", "input", "instructions", "max_output_tokens", "model", "parallel_tool_calls"}
OBEYED |= {"previous_response_id", "reasoning", "store", "stream", "stream_options", "temperature"}
OBEYED |= {"text", "tool_choice", "tools", "top_logprobs", "top_p", "truncation"}
GIVEN_BACK = {
    "max_tool_calls": 3,
    "metadata": {"a": "b"},
    "prompt_cache_key": "a",
    "safety_identifier": "b",
    "user": "c",
}
"""What changes no answer."""
PATH = "/v1/responses"
BODY: dict[str, Any] = {"input": "a", "max_output_tokens": 1}
ANOTHER: dict[str, Any] = {"type": "unheard of", "x": 1}
"""A value that no option has for nothing."""
CALLED = {"type": "function_call", "call_id": "a", "name": "b", "arguments": "{}"}
RETURNED = {"type": "function_call_output", "call_id": "a", "output": "b"}
INSIDE: dict[str, tuple[Any, set[str], dict[str, Any], Any]] = {
    "reasoning.": (Reasoning, {"effort"}, REASONING, lambda o: {"reasoning": o}),
    "text.": (ResponseTextConfigParam, {"format", "verbosity"}, {}, lambda o: {"text": o}),
    "stream_options.": (StreamOptions, set(), STREAM, lambda o: {"stream_options": o}),
    "tools.": (
        FunctionToolParam,
        {"type", "name", "description", "parameters", "strict"},
        TOOL,
        lambda o: {"tools": [{"type": "function", "name": "f", **o}]},
    ),
    "input.": (
        ResponseFunctionToolCallParam,
        {"id", "type", "call_id", "name", "namespace", "arguments", "status"},
        CALL,
        lambda o: {"input": [CALLED | o]},
    ),
    "input. ": (
        FunctionCallOutput,
        {"id", "type", "call_id", "name", "namespace", "output", "status"},
        {name: values for name, values in CALL.items() if name != "async"},
        lambda o: {"input": [RETURNED | o]},
    ),
}
"""Options within options: their type, what is obeyed, what is refused, and a body of them."""


def hints(params: Any) -> dict[str, Any]:
    return get_type_hints(params, dict(vars(response_create_params)))


def literals(hint: Any) -> Iterator[Any]:
    """The values a hint lists, wherever in it."""
    if get_origin(hint) is Literal:
        yield from get_args(hint)
    else:
        for part in get_args(hint):
            yield from literals(part)


def types_of(union: Any) -> set[Any]:
    """What the fields `type` of a union's members may be."""
    members = (member for member in get_args(union) if isinstance(member, type))
    return {value for member in members for value in literals(hints(member).get("type"))}


def refused(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    return server.refusal(PATH, BODY | body)


def test_every_field_is_known() -> None:
    known = hints(ResponseCreateParamsBase).keys() | hints(ResponseCreateParamsStreaming).keys()
    assert known == OBEYED | GIVEN_BACK.keys() | (RESPONSE.keys() & known)
    assert OBEYED | GIVEN_BACK.keys() <= ResponseRequest.model_fields.keys()
    for params, obeyed, neutral, _ in INSIDE.values():
        assert hints(params).keys() == obeyed | neutral.keys(), params


@pytest.mark.parametrize("name", RESPONSE)
def test_what_is_not_there_is_refused_by_name(fake: Served, name: str) -> None:
    listed = literals(hints(ResponseCreateParamsBase).get(name))
    for value in (ANOTHER, *(value for value in listed if value not in RESPONSE[name])):
        error = refused(fake, {name: value})
        assert (error["param"], error["code"]) == (name, "unsupported_option")
        assert name in error["message"]
    for value in RESPONSE[name]:
        fake.ask(PATH, **BODY, **{name: value})


@pytest.mark.parametrize("within", INSIDE)
def test_what_is_not_there_within_an_option_is_refused_by_name(hello: Served, within: str) -> None:
    params, _, neutral, body_of = INSIDE[within]
    for name, allowed in neutral.items():
        listed = (value for value in literals(hints(params)[name]) if [value] not in allowed)
        for value in (ANOTHER, *(value for value in listed if value not in allowed)):
            error = refused(hello, {"stream": True, **body_of({name: value})})
            assert (error["param"], error["code"]) == (within.strip() + name, "unsupported_option")
        for value in allowed:
            body = BODY | {"stream": True} | body_of({name: value})
            assert hello.http.post(PATH, json=body).status_code == 200, body


def test_what_changes_no_answer_is_given_back(fake: Served) -> None:
    answer = fake.ask(PATH, **BODY, **GIVEN_BACK)
    assert {name: answer[name] for name in GIVEN_BACK} == GIVEN_BACK


def test_an_answer_says_that_it_has_the_usual_verbosity(fake: Served) -> None:
    for verbosity in literals(hints(ResponseTextConfigParam)["verbosity"]):
        answer = fake.ask(PATH, **BODY, text={"verbosity": verbosity})
        assert answer["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


@pytest.mark.parametrize(
    ("param", "union", "here", "body_of"),
    [
        ("tools", ToolParam, {*TOOLS}, lambda kind: {"tools": [{"type": kind}]}),
        ("tool_choice", ToolChoice, {*CHOICES}, lambda kind: {"tool_choice": {"type": kind}}),
        ("input", ResponseInputItemParam, {*KINDS}, lambda kind: {"input": [{"type": kind}]}),
    ],
)
def test_hosted_tools_and_their_items_are_refused_by_name(
    hello: Served, param: str, union: Any, here: set[str], body_of: Any
) -> None:
    kinds = types_of(union)
    assert here <= kinds and len(kinds) > 7
    for kind in kinds - here:
        error = refused(hello, body_of(kind))
        assert (error["param"], error["code"]) == (param, "unsupported_option")
        assert repr(kind) in error["message"]


@pytest.mark.parametrize("kind", ["input_image", "input_file", "input_audio"])
def test_what_is_not_text_is_refused_by_name(fake: Served, kind: str) -> None:
    part = {"type": kind, "image_url": "data:image/png;base64,AA", "file_data": "AA"}
    for item in ({"role": "user", "content": [part]}, RETURNED | {"output": [part]}):
        error = refused(fake, {"input": [item]})
        assert (error["param"], error["code"]) == ("input", "unsupported_option")
        assert ("takes no images" if kind == "input_image" else repr(kind)) in error["message"]


def test_every_field_of_a_part_is_known(fake: Served) -> None:
    assert hints(ResponseInputTextParam).keys() == InputText.model_fields.keys() | {BREAKPOINT}
    here = InputImage.model_fields.keys() | {BREAKPOINT, "file_id"}
    assert hints(ResponseInputImageParam).keys() == here
    part = {"type": "input_image", "file_id": "a"}
    assert "file_id" in refused(fake, {"input": [{"role": "user", "content": [part]}]})["message"]


def test_a_breakpoint_of_the_cache_changes_nothing(hello: Served) -> None:
    def asking(**mark: Any) -> dict[str, Any]:
        part = {"type": "input_text", "text": "abc", **mark}
        return {"input": [{"role": "user", "content": [part]}]}

    answers = []
    for body in (asking(), asking(**{BREAKPOINT: {"mode": "explicit"}})):
        answer = hello.ask(PATH, **body)
        answers.append((answer["usage"], [item["type"] for item in answer["output"]]))
    assert answers[0] == answers[1]
    assert BREAKPOINT in refused(hello, asking(**{BREAKPOINT: "here"}))["message"]


def test_everything_that_may_be_included_may_be_asked_for(hello: Served) -> None:
    hello.ask(PATH, input="a", include=list(get_args(ResponseIncludable)))
    assert refused(hello, {"include": ["unheard of"]})["param"] == "include"
