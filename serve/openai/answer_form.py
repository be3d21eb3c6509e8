"""Builds the grammar that constrains a chat answer: tool calls, content, or either of them."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from eagle3_jax.sampling.json_schema import drop_vacuous_keywords
from eagle3_jax.sampling.structured_outputs import (
    MAX_CONSTRAINT_BYTES,
    FormPart,
    StructuredOutputs,
)
from serve.asgi.errors import ApiError, invalid_request
from serve.chat_format.format import ChatFormat, ChatReading
from serve.chat_format.parts import JSON_OPTIONS, ToolSpec, regex_body
from serve.openai.protocol import ChatCompletionRequest

START = re.compile(r"(?m)^\s*start\s*:(?!:)")


def answer_form(
    body: ChatCompletionRequest, reading: ChatReading, *, strict_tools: bool = False
) -> StructuredOutputs | None:
    """Return the constraint of a chat answer, or None for free text.

    Raises 400 for an impossible constraint. `strict_tools` makes every tool strict.
    """
    form, chat_format = body.form, reading.tools
    may_be_text = form is None and not body.must_call
    if not body.offered or (may_be_text and not (strict_tools or body.constrains_calls)):
        return form
    if chat_format is None:
        message = (
            "tools: the server has no parser for this checkpoint's tool calls: start it with "
            "--tool-call-parser, or send no tools"
        )
        raise invalid_request(message, param="tools", code="unsupported_option")
    once = body.names_tool or body.parallel_tool_calls is False
    strict = strict_tools or not may_be_text
    between = reading.call_ids if may_be_text else None
    # An answer that must call tools has no content to constrain.
    content = None if body.must_call else form
    try:
        functions = [_strict(tool) if strict or tool.strict else tool for tool in body.callable]
        rules = chat_format.grammar(functions, once)
    except (ValueError, RecursionError) as error:
        raise invalid_request(f"tools: {error}", param="tools") from error
    parts = [_part(tool, chat_format) for tool in functions if tool.strict]
    start = ["start: calls"]
    if content is not None:
        start = ["start: calls | content", _content(content)]
        parts.append(FormPart(content.asked_by, "", lambda: content, content.schema))
    grammar = "\n".join([*start, *rules])
    if (size := len(grammar.encode(errors="replace"))) > MAX_CONSTRAINT_BYTES:
        raise _too_long(functions, size)
    return StructuredOutputs(grammar=grammar, between=between, asked_by="tools", parts=tuple(parts))


def _strict(tool: ToolSpec) -> ToolSpec:
    """Return the tool as a strict one: its arguments must match its schema."""
    return replace(tool, strict=True, parameters=drop_vacuous_keywords(tool.parameters))


def _part(tool: ToolSpec, chat_format: ChatFormat) -> FormPart:
    def alone() -> StructuredOutputs:
        rules = chat_format.grammar([tool], True)
        return StructuredOutputs(grammar="\n".join(["start: calls", *rules]), asked_by="tools")

    return FormPart("tools", f"the parameters of {tool.name!r}", alone, tool.parameters)


def _too_long(functions: Sequence[ToolSpec], size: int) -> ApiError:
    longest = max(functions, key=lambda tool: len(json.dumps(tool.parameters)))
    message = (
        f"tools: the schemas of all tools together may have {MAX_CONSTRAINT_BYTES} bytes; got "
        f"{size}; offer fewer or smaller ones (the parameters of {longest.name!r} are the longest)"
    )
    return invalid_request(message, param="tools")


def _content(form: StructuredOutputs) -> str:
    """Return the grammar rule of content that is not a tool call."""
    if form.choice is not None:
        return "content: " + " | ".join(json.dumps(text) for text in form.choice)
    if form.regex is not None:
        return f"content: /{regex_body(form.regex)}/"
    if form.grammar is not None:
        return f"content: %lark {{\n{_lark(form)}\n}}"
    try:
        return f"content: %json {json.dumps({**(form.schema or {}), **JSON_OPTIONS})}"
    except ValueError as error:
        raise invalid_request(f"{error}", param=form.asked_by) from error


def _lark(form: StructuredOutputs) -> str:
    if START.search(f"{form.grammar}"):
        return f"{form.grammar}"
    message = (
        f"{form.asked_by}: beside tools, a grammar must be in Lark syntax and have a rule `start`; "
        "this one has none"
    )
    raise invalid_request(message, param=form.asked_by, code="unsupported_option")
