"""Flags of chat: template, reasoning parser, tool-call parser."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from convert.files.json_object import parse_value

PARSERS = ("auto", "none", "kimi_k2", "minimax_m2")
OTHER_NAMES = {"kimi": "kimi_k2", "minimax": "minimax_m2"}
"""SGLang's names of parsers -> vLLM's."""


@dataclass(frozen=True)
class ChatOptions:
    """Values of the chat flags; `template` is the text and origin of one to use instead.

    `auto_tool_choice` None: wherever calls can be parsed. `strict_tools`: every tool is strict.
    `thinking_token_budget`: for requests that set none.
    """

    template: tuple[str, str] | None = None
    template_kwargs: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    reasoning_parser: str = "auto"
    tool_call_parser: str = "auto"
    auto_tool_choice: bool | None = None
    strict_tools: bool = False
    thinking_token_budget: int | None = None


def add_chat_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group."""
    group = parser.add_argument_group("chat")
    group.add_argument(
        "--chat-template", metavar="FILE", help="a jinja template in place of the checkpoint's"
    )
    group.add_argument(
        "--default-chat-template-kwargs",
        metavar="JSON",
        help="variables of the template that requests may override",
    )
    for flag, what in (("--reasoning-parser", "reasoning"), ("--tool-call-parser", "tool calls")):
        group.add_argument(
            flag,
            type=_chat_format_name,
            choices=PARSERS,
            default="auto",
            metavar="NAME",
            help=f"who writes {what}: {', '.join(PARSERS)}; auto: by the special tokens",
        )
    group.add_argument(
        "--enable-auto-tool-choice",
        action=argparse.BooleanOptionalAction,
        help="models may choose to call tools (the default where calls can be read)",
    )
    group.add_argument(
        "--strict-tools",
        action="store_true",
        help="hold the calls of all tools to their schemas, as `strict` does for one",
    )
    group.add_argument(
        "--thinking-token-budget",
        type=_count,
        metavar="N",
        help="force the end of thinking behind N tokens, where a request sets no budget",
    )


def read_chat_options(flags: argparse.Namespace) -> ChatOptions:
    """Read the chat flags; ValueError, naming the flag, for an unusable template or variables."""
    return ChatOptions(
        template=_read_template(flags.chat_template),
        template_kwargs=_read_kwargs(flags.default_chat_template_kwargs),
        reasoning_parser=flags.reasoning_parser,
        tool_call_parser=flags.tool_call_parser,
        auto_tool_choice=flags.enable_auto_tool_choice,
        strict_tools=flags.strict_tools,
        thinking_token_budget=flags.thinking_token_budget,
    )


def _count(text: str) -> int:
    count = int(text)
    if count < 0:
        raise argparse.ArgumentTypeError(f"must be 0 or more; got {count}")
    return count


def _chat_format_name(name: str) -> str:
    name = name.replace("-", "_")
    return OTHER_NAMES.get(name, name)


def _read_template(path: str | None) -> tuple[str, str] | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8"), f"--chat-template {path}"
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--chat-template {path}: {error}") from error


def _read_kwargs(text: str | None) -> Mapping[str, Any]:
    if text is None:
        return {}
    try:
        kwargs = parse_value(text)
    except ValueError as error:
        raise ValueError(f"--default-chat-template-kwargs is not JSON: {error}") from error
    if not isinstance(kwargs, dict):
        raise ValueError("--default-chat-template-kwargs must be a JSON object")
    return kwargs
