"""Conversion of constraints to grammars that llguidance reads."""

import json
from collections.abc import Mapping
from typing import Any

from llguidance import LLMatcher, grammar_from

from eagle3_jax.sampling.structured_outputs import WHITESPACE, StructuredOutputs


def grammar_text(constraint: StructuredOutputs) -> str:
    """Return the constraint's grammar; raise ValueError if `json` holds no schema."""
    if constraint.regex is not None:
        return LLMatcher.grammar_from_regex(constraint.regex)
    if constraint.choice is not None:
        return grammar_from("choice", json.dumps(constraint.choice))
    if constraint.grammar is not None:
        return grammar_from("grammar", constraint.grammar)
    schema = constraint.schema
    assert schema is not None, "a constraint is of some kind"
    return schema_grammar(schema)


def schema_grammar(schema: Mapping[str, Any]) -> str:
    """Return the grammar of a JSON schema."""
    text = json.dumps(schema)
    return LLMatcher.grammar_from_json_schema(text, overrides={"whitespace_pattern": WHITESPACE})
