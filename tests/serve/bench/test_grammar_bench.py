"""The validity that `eagle3-bench grammar` counts, and its verdict."""

from dataclasses import replace
from typing import Any

import pytest

from eagle3_jax.engine import CollectedOutput
from serve.bench.common.spread import Spread
from serve.bench.grammar.schemas import fits
from serve.bench.grammar.tool_calls import ToolCalls, valid_calls
from serve.bench.studies.grammar import PERSON, SCHEMAS, StructuredRecord, is_valid
from serve.chat_format.parts import AnswerParts, CallPart

SOUND = StructuredRecord(3, 1.0, 5, 5, 5, 1.5, 1e-4, [])
VALID = [
    {"name": "Ada", "age": 3, "city": "Oslo"},
    {"points": [{"x": 1, "y": -2}]},
    {"sky": "rainy", "cold": False},
    {"people": [], "tag": "a"},
]


def test_values_fit_their_schema_and_no_other() -> None:
    for i, value in enumerate(VALID):
        assert [fits(value, schema) for schema in SCHEMAS] == [i == j for j in range(4)]


@pytest.mark.parametrize(
    "change",
    [{"age": 121}, {"age": True}, {"age": "3"}, {"name": ""}, {"name": "a" * 13}, {"x": 1}],
)
def test_what_does_not_fit_is_noticed(change: dict[str, Any]) -> None:
    assert set(PERSON) == {"name", "age", "city"}
    assert not fits(VALID[0] | change, SCHEMAS[0])


def test_an_answer_is_valid_when_it_ended_by_itself() -> None:
    text = '{"sky": "clear", "cold": true}'
    assert is_valid(CollectedOutput(texts=[text], token_ids=[1], finish_reason="stop"), 2)
    assert not is_valid(CollectedOutput(texts=[text], token_ids=[1], finish_reason="length"), 2)
    assert not is_valid(CollectedOutput(texts=[text[:-1]], token_ids=[1], finish_reason="stop"), 2)
    assert not is_valid(CollectedOutput(texts=[text], token_ids=[1], finish_reason="stop"), 0)


def test_one_wrong_answer_fails_the_run() -> None:
    assert SOUND.holds
    assert not replace(SOUND, valid=4).holds and not replace(SOUND, identical=4).holds


def test_a_call_is_valid_when_its_arguments_fit_the_schema_of_its_function() -> None:
    schemas = {"person": SCHEMAS[0]}
    sound = '{"name": "Ada", "age": 3, "city": "Oslo"}'
    calls = [("person", sound), ("other", sound), ("person", sound[:-1]), ("person", "{}")]
    parts = AnswerParts(calls={i: CallPart("", *call) for i, call in enumerate(calls)})
    assert valid_calls(parts, schemas) == 1


def test_one_wrong_call_fails_the_run() -> None:
    spread = Spread.of([1.0])
    calls = ToolCalls(3, 2, 2, 3, 3, 1.5, 0, 0, spread, spread)
    assert replace(SOUND, tool_calls=calls).holds
    for wrong in ({"valid": 1}, {"identical": 2}, {"unchanged": 2}):
        assert not replace(SOUND, tool_calls=replace(calls, **wrong)).holds
