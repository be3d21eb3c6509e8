"""The form of an answer, asked for under every name, and refused where it can't be had."""

from collections.abc import Iterator
from typing import Any

import pytest
from fake_engine import CharTokenizer, FakeEngine
from fake_server import Served, served_by

from eagle3_jax.engine import Request
from eagle3_jax.engine.grammars.interface import FormRefusedError
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.chat_format.format import KIMI_K2

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "x", "schema": SCHEMA, "strict": True}
TOOL = {"type": "function", "function": {"name": "add", "parameters": SCHEMA}}
ASKED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "OpenAI's schema": (
        {"response_format": {"type": "json_schema", "json_schema": NAMED}},
        {"json": SCHEMA},
    ),
    "OpenAI's object": ({"response_format": {"type": "json_object"}}, {"json_object": True}),
    "schema": ({"structured_outputs": {"json": SCHEMA, "regex": None}}, {"json": SCHEMA}),
    "regex": ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    "choice": ({"structured_outputs": {"choice": ["a", "b"]}}, {"choice": ["a", "b"]}),
    "older schema": ({"guided_json": SCHEMA}, {"json": SCHEMA}),
    "older regex": ({"guided_regex": "a+"}, {"regex": "a+"}),
    "older choice": ({"guided_choice": ["a"]}, {"choice": ["a"]}),
    "older grammar": ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
    "SGLang's schema": ({"json_schema": '{"type":"null"}'}, {"json": '{"type":"null"}'}),
    "SGLang's grammar": ({"ebnf": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
}
REFUSED = {
    "response_format": [
        {"response_format": {"type": "xml"}},
        {"response_format": {"type": "json_schema"}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": 5}}},
    ],
    "structured_outputs": [
        {"structured_outputs": {"structural_tag": "x"}},
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        {"structured_outputs": {"choice": []}},
        {"structured_outputs": {"json": {"enum": ["x" * 1_000_000]}}},
    ],
    "only one": [{"guided_regex": "a", "response_format": {"type": "json_object"}}],
    "guided_choice": [{"guided_choice": [1]}],
}


class AnyGrammars:
    """Takes every constraint but one."""

    def known(self, constraint: StructuredOutputs) -> None:
        """None, so that each is compiled."""

    def compile(self, constraint: StructuredOutputs) -> Any:
        if constraint.regex == "bad":
            raise FormRefusedError("no such expression", constraint.asked_by)


class MarkedTokenizer(CharTokenizer):
    """Writes each mark as one token: their indices."""

    marks = ("<think>", "</think>", *(mark.text for mark in KIMI_K2.call_marks))

    def encode(self, text: str, add_special: bool = False, most: int | None = None) -> list[int]:
        head = text.removesuffix("<think>")
        if add_special and text in self.marks:
            return [self.marks.index(text)]
        return super().encode(head) + [0] * (head != text)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server whose engine takes no notice of forms."""
    with served_by(FakeEngine(), MarkedTokenizer(), grammars=AnyGrammars()) as running:
        yield running


def post(server: Served, chat: bool, given: dict[str, Any]) -> Any:
    prompt = {"messages": [{"role": "user", "content": "a"}]} if chat else {"prompt": "a"}
    path = CHAT if chat else COMPLETIONS
    return server.http.post(path, json={**prompt, **given, "max_tokens": 3})


@pytest.mark.parametrize("chat", [False, True], ids=["completion", "chat"])
@pytest.mark.parametrize("kind", ASKED)
def test_a_form_reaches_the_engine(
    server: Served, seen: list[Request], kind: str, chat: bool
) -> None:
    given, expected = ASKED[kind]
    answer = post(server, chat, given)
    assert answer.status_code == 200, answer.text
    assert seen[0].sampling.structured_outputs == StructuredOutputs(**expected)


def test_behind_an_open_reasoning_the_form_begins_where_that_ends(
    server: Served, seen: list[Request]
) -> None:
    given = {"guided_regex": "a+", "chat_template_kwargs": {"suffix": "<think>"}}
    assert post(server, True, given).status_code == 200
    assert post(server, True, {"guided_regex": "a+"}).status_code == 200
    begins = [
        r.sampling.structured_outputs.begins_after for r in seen if r.sampling.structured_outputs
    ]
    assert begins == [1, None]


def test_plain_text_asks_for_no_form(fake: Served, seen: list[Request]) -> None:
    for given in ({"response_format": {"type": "text"}}, {"structured_outputs": None}):
        assert post(fake, True, given).status_code == 200
    assert [request.sampling.structured_outputs for request in seen] == [None, None]


@pytest.mark.parametrize("naming", REFUSED)
def test_what_is_no_form_is_400_that_says_so(server: Served, naming: str) -> None:
    for given in REFUSED[naming]:
        answer = post(server, False, given)
        assert answer.status_code == 400
        assert naming in answer.json()["error"]["message"]


def test_a_form_that_does_not_compile_is_400(server: Served, seen: list[Request]) -> None:
    answer = post(server, True, {"guided_regex": "bad"})
    assert answer.status_code == 400 and not seen
    error = answer.json()["error"]
    assert (error["message"], error["param"]) == ("no such expression", "guided_regex")


def test_without_llguidance_the_extra_is_named(fake: Served, seen: list[Request]) -> None:
    answer = post(fake, True, {"guided_regex": "a"})
    assert answer.status_code == 400 and not seen
    assert "eagle3-jax[grammar]" in answer.json()["error"]["message"]


def test_a_tool_that_must_be_called_gives_the_answer_its_form(
    server: Served, seen: list[Request]
) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "add"}}):
        assert post(server, True, {"tools": [TOOL], "tool_choice": choice}).status_code == 200
    many, one = (request.sampling.structured_outputs for request in seen)
    assert many and one and '"functions.add:"' in str(many.grammar)
    assert "(call_0)+" in str(many.grammar) and "(call_0)+" not in str(one.grammar)


def test_with_tools_the_answer_is_calls_or_has_its_form(
    server: Served, seen: list[Request]
) -> None:
    for form in ({"response_format": {"type": "json_object"}}, {"guided_choice": ["a"]}):
        assert post(server, True, {"tools": [TOOL], **form}).status_code == 200
    assert post(server, True, {"tools": [TOOL]}).status_code == 200
    *either, free = (request.sampling.structured_outputs for request in seen)
    assert all(form and str(form.grammar).startswith("start: calls | content") for form in either)
    assert free is None


@pytest.mark.parametrize(
    "given",
    [
        {"tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
        {"tools": [{"type": "function", "function": {"name": "a b"}}], "tool_choice": "none"},
    ],
)
def test_tools_that_can_not_be_offered_are_400(server: Served, given: dict[str, Any]) -> None:
    answer = post(server, True, given)
    assert answer.status_code == 400
    assert "tool" in answer.json()["error"]["message"]
