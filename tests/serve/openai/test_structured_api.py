"""The form of an answer, asked for under every name, and refused where it can't be had."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from called_tools import saying
from fake_server import BODIES, Served, served_by
from scripted_engine import AnyGrammars

from eagle3_jax.engine.grammars.interface import FormRefusedError
from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.chat_format.reader import END_OF_THINK
from serve.chat_format.reasoning import id_of

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
NAMED = {"name": "x", "schema": SCHEMA, "strict": True}
PROMPTS = {path: BODIES[path] for path in (COMPLETIONS, CHAT)}
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
    "tool": [{"tools": [{"type": "function", "function": {"name": "a b"}}], "tool_choice": "none"}],
}


class Grammars(AnyGrammars):
    def compile(self, constraint: StructuredOutputs) -> Any:
        if constraint.regex == "bad":
            raise FormRefusedError("no such expression", constraint.asked_by)


@pytest.fixture(scope="module")
def server() -> Iterator[Served]:
    """A server whose engine takes no notice of forms."""
    engine = saying("x")
    with served_by(engine, engine.tokenizer, grammars=Grammars()) as running:
        yield replace(running, engine=engine)


def form(server: Served, path: str = CHAT, **given: Any) -> StructuredOutputs | None:
    server.ask(path, **PROMPTS[path], **given)
    return server.engine.asked[-1].sampling.structured_outputs


@pytest.mark.parametrize("path", PROMPTS)
def test_a_form_reaches_the_engine(server: Served, path: str) -> None:
    for kind, (given, expected) in ASKED.items():
        assert form(server, path, **given) == StructuredOutputs(**expected), kind
    for plain in ({"response_format": {"type": "text"}}, {"structured_outputs": None}):
        assert form(server, path, **plain) is None


def test_behind_an_open_reasoning_the_form_begins_where_that_ends(server: Served) -> None:
    thinking, plain = (form(server, guided_regex="a+", thinking=on) for on in (True, False))
    assert thinking and plain and plain.begins_after is None
    assert thinking.begins_after == id_of(END_OF_THINK, server.service.tokenizer)


@pytest.mark.parametrize("naming", REFUSED)
def test_what_is_no_form_is_400_that_says_so(server: Served, naming: str) -> None:
    for given in REFUSED[naming]:
        assert naming in server.refusal(CHAT, PROMPTS[CHAT] | given)["message"]


def test_a_form_that_can_not_be_compiled_is_400(server: Served, fake: Served) -> None:
    error = server.refusal(CHAT, PROMPTS[CHAT] | {"guided_regex": "bad"})
    assert (error["message"], error["param"]) == ("no such expression", "guided_regex")
    without = fake.refusal(CHAT, PROMPTS[CHAT] | {"guided_regex": "a"})
    assert "eagle3-jax[grammar]" in without["message"]
