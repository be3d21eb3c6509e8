"""Every option that OpenAI's own client knows of is obeyed or refused by its name."""

from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
from called_tools import saying
from client_types import kinds, literals, names
from fake_server import Served, served
from openai.types import responses
from openai.types.responses import response_create_params as create
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
TEXT_CONFIG = responses.ResponseTextConfigParam
OF_CALLS = {"id", "type", "call_id", "name", "namespace", "status"}
INSIDE: dict[str, tuple[Any, set[str], dict[str, Any]]] = {
    "reasoning.": (Reasoning, {"effort"}, REASONING),
    "text.": (TEXT_CONFIG, {"format", "verbosity"}, {}),
    "stream_options.": (create.StreamOptions, set(), STREAM),
    "tools.": (
        responses.FunctionToolParam,
        {"type", "name", "description", "parameters", "strict"},
        TOOL,
    ),
    "input.": (responses.ResponseFunctionToolCallParam, OF_CALLS | {"arguments"}, CALL),
    "input. ": (
        FunctionCallOutput,
        OF_CALLS | {"output"},
        {name: values for name, values in CALL.items() if name != "async"},
    ),
}
"""Options within options: their type, what is obeyed, and what is refused."""
ITEMS = {"tools.": {"type": "function", "name": "f"}, "input.": CALLED, "input. ": RETURNED}
"""The rest of those that are items of a list."""
OF_MODULE = dict(vars(create))
"""Names that the annotations of the client's module use."""


def hints(params: Any) -> dict[str, Any]:
    return get_type_hints(params, OF_MODULE)


@pytest.fixture(scope="module")
def hello() -> Iterator[Served]:
    """A server whose tokenizer knows tools and reasoning."""
    engine = saying("hello")
    with served(engine, tokenizer=engine.tokenizer) as server:
        yield server


def refused(server: Served, body: dict[str, Any]) -> dict[str, Any]:
    return server.refusal(PATH, BODY | body)


def test_every_field_is_known() -> None:
    known = names(
        create.ResponseCreateParamsBase, create.ResponseCreateParamsStreaming, **OF_MODULE
    )
    assert known == OBEYED | GIVEN_BACK.keys() | (RESPONSE.keys() & known)
    assert OBEYED | GIVEN_BACK.keys() <= ResponseRequest.model_fields.keys()
    for params, obeyed, neutral in INSIDE.values():
        assert hints(params).keys() == obeyed | neutral.keys(), params


@pytest.mark.parametrize("name", RESPONSE)
def test_what_is_not_there_is_refused_by_name(fake: Served, name: str) -> None:
    listed = literals(hints(create.ResponseCreateParamsBase).get(name))
    for value in (ANOTHER, *(value for value in listed if value not in RESPONSE[name])):
        error = refused(fake, {name: value})
        assert (error["param"], error["code"]) == (name, "unsupported_option")
        assert name in error["message"]
    for value in RESPONSE[name]:
        fake.ask(PATH, **BODY, **{name: value})


@pytest.mark.parametrize("within", INSIDE)
def test_what_is_not_there_within_an_option_is_refused_by_name(hello: Served, within: str) -> None:
    def body(name: str, value: Any) -> dict[str, Any]:
        option = ITEMS.get(within, {}) | {name: value}
        return {within.strip(" ."): [option] if within in ITEMS else option, "stream": True}

    params, _, neutral = INSIDE[within]
    for name, allowed in neutral.items():
        listed = (value for value in literals(hints(params)[name]) if [value] not in allowed)
        for value in (ANOTHER, *(value for value in listed if value not in allowed)):
            error = refused(hello, body(name, value))
            assert (error["param"], error["code"]) == (within.strip() + name, "unsupported_option")
        for value in allowed:
            answer = hello.http.post(PATH, json=BODY | body(name, value))
            assert answer.status_code == 200, answer.text


def test_what_changes_no_answer_is_given_back(fake: Served) -> None:
    answer = fake.ask(PATH, **BODY, **GIVEN_BACK)
    assert {name: answer[name] for name in GIVEN_BACK} == GIVEN_BACK


def test_an_answer_says_that_it_has_the_usual_verbosity(fake: Served) -> None:
    for verbosity in literals(hints(TEXT_CONFIG)["verbosity"]):
        answer = fake.ask(PATH, **BODY, text={"verbosity": verbosity})
        assert answer["text"] == {"format": {"type": "text"}, "verbosity": "medium"}


@pytest.mark.parametrize(
    ("param", "union", "here"),
    [
        ("tools", responses.ToolParam, {*TOOLS}),
        ("tool_choice", create.ToolChoice, {*CHOICES}),
        ("input", responses.ResponseInputItemParam, {*KINDS}),
    ],
)
def test_hosted_tools_and_their_items_are_refused_by_name(
    hello: Served, param: str, union: Any, here: set[str]
) -> None:
    known = kinds(union, **OF_MODULE)
    assert here <= known and len(known) > 7
    for kind in known - here:
        part: Any = {"type": kind}
        error = refused(hello, {param: part if param == "tool_choice" else [part]})
        assert (error["param"], error["code"]) == (param, "unsupported_option")
        assert repr(kind) in error["message"]


def test_parts_that_are_no_text_are_refused_by_name(fake: Served) -> None:
    for kind in ("input_image", "input_file", "input_audio"):
        part = {"type": kind, "image_url": "data:image/png;base64,AA", "file_data": "AA"}
        for item in ({"role": "user", "content": [part]}, RETURNED | {"output": [part]}):
            error = refused(fake, {"input": [item]})
            assert (error["param"], error["code"]) == ("input", "unsupported_option")
            assert ("takes no images" if kind == "input_image" else repr(kind)) in error["message"]
    assert names(responses.ResponseInputTextParam) == {*InputText.model_fields, BREAKPOINT}
    here = {*InputImage.model_fields, BREAKPOINT, "file_id"}
    assert names(responses.ResponseInputImageParam) == here
    part = {"type": "input_image", "file_id": "a"}
    assert "file_id" in refused(fake, {"input": [{"role": "user", "content": [part]}]})["message"]


def test_everything_that_may_be_included_may_be_asked_for(hello: Served) -> None:
    hello.ask(PATH, input="a", include=list(get_args(responses.ResponseIncludable)))
    assert refused(hello, {"include": ["unheard of"]})["param"] == "include"
