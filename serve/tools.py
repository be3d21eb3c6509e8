"""The tools of a chat request, and the grammar of the calls it must be answered with.

Kimi writes a section of calls, each of which names its function and an index and then gives the
arguments as JSON; the marks between them are special tokens.
"""

import json
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from eagle3_jax.structured_outputs import WHITESPACE, StructuredOutputs
from serve.errors import invalid_option

SECTION_MARK = "<|tool_calls_section_begin|>"
SECTION = f"start: {SECTION_MARK} {{calls}} <|tool_calls_section_end|>"
CALL = (
    "call_{n}: <|tool_call_begin|> {header} INDEX <|tool_call_argument_begin|> "
    "arguments_{n} <|tool_call_end|>\narguments_{n}: %json {schema}"
)
INDEX = "INDEX: /[0-9]{1,3}/"
OPTIONS = {"x-guidance": {"whitespace_pattern": WHITESPACE}}


class Function(BaseModel):
    """A function the model may call; parameters is the JSON schema of its arguments."""

    model_config = ConfigDict(extra="allow")

    name: str = Field(pattern=r"^[\w.-]{1,128}$")
    parameters: dict[str, Any] | None = None


class Tool(BaseModel):
    """An entry of `tools`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: Function


class FunctionName(BaseModel):
    """The function of a named choice."""

    name: str


class NamedChoice(BaseModel):
    """A tool_choice that names its function."""

    type: Literal["function"]
    function: FunctionName


class ToolFields(BaseModel):
    """The fields of a chat request about tools."""

    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    parallel_tool_calls: bool | None = None

    @model_validator(mode="after")
    def _check_tools(self) -> Self:
        choice = self.tool_choice or "auto"
        if self.tools and choice == "auto":
            message = (
                "tools: tool_choice 'auto' is not implemented in this release; it must be "
                "'required', a function's name, or 'none'"
            )
            raise invalid_option("tool_choice", message)
        if not self.tools and choice not in ("auto", "none"):
            raise invalid_option("tool_choice", "tool_choice needs tools to choose from")
        if isinstance(choice, NamedChoice) and not self.callable:
            message = f"tool_choice: there is no tool {choice.function.name!r}"
            raise invalid_option("tool_choice", message)
        return self

    @property
    def shown_tools(self) -> list[dict[str, Any]]:
        """The tools as the chat template reads them; none when none may be called."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        return [tool.model_dump(exclude_unset=True) for tool in tools]

    @property
    def callable(self) -> list[Function]:
        """The functions one of which must be called; none when the answer is text."""
        functions = [tool.function for tool in self.tools or ()]
        if isinstance(self.tool_choice, NamedChoice):
            return [f for f in functions if f.name == self.tool_choice.function.name][:1]
        return functions if self.tool_choice == "required" else []

    @property
    def names_tool(self) -> bool:
        """Whether the request says which function is to be called."""
        return isinstance(self.tool_choice, NamedChoice)

    @property
    def calls_form(self) -> StructuredOutputs | None:
        """The form of the calls the answer must consist of; a named function is called once."""
        functions = self.callable
        if not functions:
            return None
        once = self.names_tool or self.parallel_tool_calls is False
        any_call = "(" + " | ".join(f"call_{n}" for n in range(len(functions))) + ")"
        rules = [SECTION.format(calls=any_call if once else f"{any_call}+"), INDEX]
        for n, function in enumerate(functions):
            schema = json.dumps({"type": "object"} | (function.parameters or {}) | OPTIONS)
            header = json.dumps(f"functions.{function.name}:")
            rules.append(CALL.format(n=n, header=header, schema=schema))
        return _form("\n".join(rules))


def _form(grammar: str) -> StructuredOutputs:
    try:
        return StructuredOutputs(grammar=grammar)
    except ValueError as error:
        raise invalid_option("tools", f"tools: {error}") from error
