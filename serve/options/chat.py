"""Options of chat: template, reasoning parser, tool-call parser."""

from argparse import ArgumentTypeError, BooleanOptionalAction
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from convert.command_line.options import COUNT_OR_0, json_object, option

PARSERS = ("auto", "none", "kimi_k2", "minimax_m2")
OTHER_NAMES = {"kimi": "kimi_k2", "minimax": "minimax_m2"}
"""SGLang's names of parsers -> vLLM's."""
LISTED = f"{', '.join(PARSERS)}; auto follows the tokenizer's special tokens"


def _chat_format_name(name: str) -> str:
    name = name.replace("-", "_")
    return OTHER_NAMES.get(name, name)


def _read_template(path: str) -> tuple[str, str]:
    try:
        return Path(path).read_text(encoding="utf-8"), f"--chat-template {path}"
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentTypeError(f"can't read {path}: {error}") from error


@dataclass(frozen=True)
class ChatOptions:
    """Values of the chat flags.

    `template` is the text and origin of a chat template. `auto_tool_choice` None: wherever calls
    can be parsed. `thinking_token_budget`: for requests that set none.
    """

    template: tuple[str, str] | None = option(
        "--chat-template FILE", "a jinja template that replaces the checkpoint's", _read_template
    )
    template_kwargs: Mapping[str, Any] = option(
        "--default-chat-template-kwargs JSON",
        "template variables; a request may override them",
        json_object,
        default=MappingProxyType({}),
        unset=True,
    )
    reasoning_parser: str = option(
        "--reasoning-parser NAME",
        f"format of reasoning in answers: {LISTED}",
        _chat_format_name,
        default="auto",
        choices=PARSERS,
    )
    tool_call_parser: str = option(
        "--tool-call-parser NAME",
        f"format of tool calls in answers: {LISTED}",
        _chat_format_name,
        default="auto",
        choices=PARSERS,
    )
    auto_tool_choice: bool | None = option(
        "--enable-auto-tool-choice",
        "let the model choose to call tools (the default if its calls can be parsed)",
        action=BooleanOptionalAction,
    )
    strict_tools: bool = option(
        "--strict-tools",
        "make calls of every tool follow its schema, as `strict` does for a single tool",
    )
    thinking_token_budget: int | None = option(
        "--thinking-token-budget N",
        "force the end of thinking after N tokens, unless a request sets a budget",
        COUNT_OR_0,
    )
