"""Tool declarations in TypeScript, against goldens of Kimi's published encoder."""

import json
from typing import Any

import pytest
from oracle_files import golden_json

from convert.text.typescript_tools import (
    MAX_CHARACTERS,
    MAX_DEPTH,
    declare_tools,
    sorted_by_key,
    with_tool_declarations,
)

CASES = {case["name"]: case for case in golden_json("kimi_tools")}
READS = "{{ tools_ts_str or tools | tojson }}"


def function(properties: dict[str, Any]) -> list[Any]:
    parameters = {"type": "object", "properties": properties}
    return [{"type": "function", "function": {"name": "f", "parameters": parameters}}]


def nested(schema: dict[str, Any], depth: int) -> dict[str, Any]:
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize("name", CASES)
def test_declarations_are_those_of_the_published_encoder(name: str) -> None:
    case = CASES[name]
    tools = sorted_by_key(case["tools"])
    assert declare_tools(tools) == case["tools_ts_str"]
    if not case["tools_ts_str"]:
        assert json.dumps(tools, ensure_ascii=False, separators=(",", ":")) == case["json"]


def test_a_template_gets_declarations_only_where_it_reads_them() -> None:
    case = CASES["sorting"]
    options = {"tools": case["tools"], "tools_ts_str": "the client's", "thinking": True}
    untouched = with_tool_declarations(options, "{{ tools }}{# tools_ts_str #}")
    assert untouched == options and untouched["tools"] is options["tools"]
    declared = with_tool_declarations(options, READS)
    assert declared == options | {"tools_ts_str": case["tools_ts_str"]}
    assert json.dumps(declared["tools"]) == json.dumps(sorted_by_key(case["tools"]))
    assert with_tool_declarations({"tools": []}, READS) == {"tools": []}


@pytest.mark.parametrize("tools", [CASES["one_of"]["tools"], [1], "text", {"a": 1}, 7])
def test_a_clients_own_declarations_stand_where_the_tools_have_none(tools: Any) -> None:
    options = {"tools": tools, "tools_ts_str": "the client's"}
    assert with_tool_declarations(options, READS) == options


def test_schemas_that_are_too_deep_or_become_too_long_are_json() -> None:
    deepest = function({"a": nested({"type": "null"}, MAX_DEPTH - 1)})
    assert "null" in (declare_tools(deepest) or "")
    assert declare_tools(function({"a": nested({"type": "null"}, MAX_DEPTH)})) is None
    lines = {"type": "null", "description": "a\n" * (MAX_CHARACTERS // 200)}
    assert declare_tools(function({"a": lines}))
    assert declare_tools(function({"a": nested(lines, 100)})) is None
