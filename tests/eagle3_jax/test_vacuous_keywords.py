"""Keywords that bar nothing are dropped, and nothing else: jsonschema says what stays valid."""

import json
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft6Validator, Draft7Validator, Draft202012Validator

from eagle3_jax.sampling.json_schema import FORMATS, drop_vacuous_keywords, subschemas

VALIDATORS = {
    "http://json-schema.org/draft-06/schema#": Draft6Validator,
    "http://json-schema.org/draft-07/schema#": Draft7Validator,
    "https://json-schema.org/draft/2020-12/schema": Draft202012Validator,
    None: Draft202012Validator,
}
VACUOUS: list[dict[str, Any]] = [
    {"uniqueItems": False},
    {"type": "string", "uniqueItems": True},
    {"type": "array", "uniqueItems": True, "maxItems": 1},
    {"type": ["integer", "null"], "contains": {"type": "integer"}},
    {"propertyNames": True},
    {"propertyNames": {"description": "a name"}},
    {"propertyNames": {"type": "string", "minLength": 0}},
    {"propertyNames": {"type": ["string", "null"]}},
    {"contains": {"type": "integer"}, "minContains": 0},
    {"minContains": 3, "maxContains": 1},
    *({name: {}} for name in ("dependentRequired", "dependentSchemas", "dependencies")),
    {"dependentRequired": {"a": [], "b": ["b", "c"]}, "required": ["c"]},
    {"dependentSchemas": {"a": True, "b": {"title": "x"}}},
    {"dependencies": {"a": [], "b": {}}},
    *({name: 0} for name in ("minItems", "minLength", "minProperties")),
    {"minItems": 0.0},
    *({"not": inner} for inner in (False, {"not": {}}, {"enum": []})),
    *({"if": {"type": "integer"}} | more for more in ({}, {"then": True, "else": {}})),
    {"if": True, "then": {}, "else": False},
    {"if": False, "then": {"type": "integer"}},
    *({name: {"type": "integer"}} for name in ("then", "else")),
    {"allOf": [True, {"examples": [1]}]},
    {"anyOf": [{"type": "integer"}, {}]},
    {"oneOf": [False, True]},
    {"additionalItems": True},
    {"items": {}, "additionalItems": False},
    {"additionalProperties": {}, "patternProperties": {"^a": {}}},
    *({name: True} for name in ("unevaluatedItems", "unevaluatedProperties")),
    {"type": ["null", "boolean", "object", "array", "number", "integer", "string"]},
    {"required": []},
    {"format": "int32"},
    {"$id": "my schema", "$schema": "https://example.com/dialect", "$dynamicAnchor": "node"},
]
"""Each is left with no assertion, but for a type and what made another one vacuous."""
LEFT = {"type", "maxItems", "required", "items"}
BARRING: list[dict[str, Any]] = [
    {"uniqueItems": True},
    {"propertyNames": {"pattern": "^a"}},
    {"propertyNames": {"type": "integer"}},
    {"contains": {}},
    {"contains": {}, "minContains": 0, "maxContains": 1},
    {"dependentRequired": {"a": ["b"]}},
    {"dependentSchemas": {"a": False}},
    {"not": {}},
    {"if": {"type": "integer"}, "then": {"minimum": 1}},
    {"if": True, "then": False},
    {"oneOf": [True, True]},
    {"patternProperties": {"^a": {}}, "additionalProperties": False},
    {"unevaluatedProperties": False},
    {"format": "date"},
    {"type": 5},
    {"type": ["string", 5]},
]
LITERAL: dict[str, Any] = {
    "properties": {"uniqueItems": {"type": "integer"}, "not": {"enum": [{"minItems": 0}]}},
    "required": ["uniqueItems"],
    "const": {"uniqueItems": False, "required": []},
    "default": {"propertyNames": True},
    "examples": [{"format": "int32"}],
    "$defs": {"minItems": {"const": 0}},
}


@pytest.mark.parametrize("schema", VACUOUS, ids=json.dumps)
def test_what_bars_nothing_is_dropped_wherever_it_stands(schema: dict[str, Any]) -> None:
    left = drop_vacuous_keywords(schema)
    assert left.keys() <= LEFT and all(left[name] == schema[name] for name in left)
    if find_spec("llguidance"):
        from llguidance import LLMatcher

        grammar = LLMatcher.grammar_from_json_schema(json.dumps(left))
        assert not LLMatcher.validate_grammar(grammar)
    assert drop_vacuous_keywords({"properties": {"a": {"items": schema}}}) == {
        "properties": {"a": {"items": left} if left else {}}
    }


@pytest.mark.parametrize("schema", [*BARRING, LITERAL, True, False, 5, None], ids=json.dumps)
def test_what_bars_something_or_is_no_keyword_stays(schema: Any) -> None:
    assert drop_vacuous_keywords(schema) == schema


def test_formats_stay_that_llguidance_enforces() -> None:
    matcher = pytest.importorskip("llguidance").LLMatcher
    for name in FORMATS:
        assert not matcher.validate_grammar(
            matcher.grammar_from_json_schema(f'{{"format": "{name}"}}')
        )


def test_identifiers_stay_where_references_may_need_them() -> None:
    schema = {"$id": "https://example.com/a", "properties": {"a": {"$ref": "a"}}}
    assert drop_vacuous_keywords(schema) == schema


def test_before_2019_contains_has_no_least_number() -> None:
    schema = {"$schema": "http://json-schema.org/draft-07/schema#", "contains": {"const": 1}}
    assert drop_vacuous_keywords(schema | {"minContains": 0}) == schema


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "b", "2020-01-01"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = st.lists(st.sampled_from("abc"), max_size=2, unique=True)
KINDS = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])


def of_schemas(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Schemas over inner ones. `unevaluatedProperties` is only ever true: false beside a dropped
    keyword could change its verdict, but llguidance refuses it."""
    mapped = st.dictionaries(st.sampled_from("abc"), inner, max_size=2)
    several, count = st.lists(inner, min_size=1, max_size=3), st.integers(0, 2)
    one = ("contains", "if", "then", "else", "not", "propertyNames", "items")
    keywords: dict[str, st.SearchStrategy[Any]] = {
        **dict.fromkeys((*one, "additionalProperties"), inner),
        **dict.fromkeys(("allOf", "anyOf", "oneOf"), several),
        **dict.fromkeys(("properties", "patternProperties", "dependentSchemas"), mapped),
        **dict.fromkeys(("minContains", "maxContains", "minItems", "maxItems", "minLength"), count),
        "dependencies": st.dictionaries(st.sampled_from("abc"), inner | NAMES, max_size=2),
        "dependentRequired": st.dictionaries(st.sampled_from("abc"), NAMES, max_size=2),
        "required": NAMES,
        "uniqueItems": st.booleans(),
        "unevaluatedProperties": st.just(True),
        "type": KINDS | st.lists(KINDS, min_size=1, unique=True),
        "enum": st.lists(VALUES, max_size=2),
        "format": st.sampled_from(["date", "int32"]),
        "title": st.just("x"),
    }
    chosen = st.lists(st.sampled_from(sorted(keywords)), max_size=4, unique=True)
    return chosen.flatmap(lambda names: st.fixed_dictionaries({n: keywords[n] for n in names}))


SCHEMAS = st.recursive(st.booleans() | st.just({}), of_schemas, max_leaves=5)


@pytest.mark.parametrize("dialect", VALIDATORS)
@given(schema=SCHEMAS, values=st.lists(VALUES, min_size=8, max_size=8))
@settings(max_examples=100, deadline=None)
def test_dropping_changes_no_verdict(dialect: str | None, schema: Any, values: list[Any]) -> None:
    whole = {"$schema": dialect, "allOf": [schema]} if dialect else schema
    left = drop_vacuous_keywords(whole)
    before, after = VALIDATORS[dialect](whole), VALIDATORS[dialect](left)
    for value in values:
        assert before.is_valid(value) == after.is_valid(value), (left, value)
    assert {keys for keys, _ in subschemas(left)} <= {keys for keys, _ in subschemas(whole)}
