"""The grammar that a chat answer must follow: of tool calls, of its content, or of either."""

import json
import re
from dataclasses import replace

from eagle3_jax.sampling.structured_outputs import StructuredOutputs
from serve.asgi.errors import invalid_request
from serve.chat_format.format import ChatReading
from serve.chat_format.lark import regex_body
from serve.chat_format.parts import JSON_OPTIONS
from serve.openai.protocol import ChatCompletionRequest

JSON_OBJECT = {"type": "object"}
START = re.compile(r"(?m)^\s*start\s*:(?!:)")


def answer_form(
    body: ChatCompletionRequest, reading: ChatReading, *, strict_tools: bool = False
) -> StructuredOutputs | None:
    """The form that a request asks for; None for free text. Raises 400 for what can't be had.

    reading: how the model calls tools. strict_tools: whether all are strict.
    """
    form, chat_format = body.form, reading.tools
    may_be_text = form is None and not body.must_call
    if not body.offered or (may_be_text and not (strict_tools or body.holds_calls)):
        return form
    if chat_format is None:
        message = "the server knows no way in which this checkpoint calls tools"
        raise invalid_request(message, param="tools", code="unsupported_option")
    once = body.names_tool or body.parallel_tool_calls is False
    strict = strict_tools or not may_be_text
    functions = [replace(tool, strict=strict or tool.strict) for tool in body.callable]
    # What must call has no content that could have the form.
    if form is None or body.must_call:
        start = ["start: calls"]
    else:
        start = ["start: calls | content", _content(form)]
    between = reading.call_ids if may_be_text else None
    try:
        rules = chat_format.grammar(functions, once)
        return StructuredOutputs(grammar="\n".join([*start, *rules]), between=between)
    except ValueError as error:
        raise invalid_request(f"tools: {error}", param="tools") from error


def _content(form: StructuredOutputs) -> str:
    """The rule of a content that is no call."""
    if form.choice is not None:
        return "content: " + " | ".join(json.dumps(text) for text in form.choice)
    if form.regex is not None:
        return f"content: /{regex_body(form.regex)}/"
    if form.grammar is not None:
        return f"content: %lark {{\n{_lark(form.grammar)}\n}}"
    schema = JSON_OBJECT if form.json_object else json.loads(str(form.json))
    if not isinstance(schema, dict):
        schema = {} if schema else {"enum": []}
    return f"content: %json {json.dumps(schema | JSON_OPTIONS)}"


def _lark(grammar: str) -> str:
    if START.search(grammar):
        return grammar
    message = "with tools, the content's grammar must be Lark's, with a rule `start`"
    raise invalid_request(message, param="structured_outputs", code="unsupported_option")
