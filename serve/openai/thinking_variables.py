"""Converts a request's fields about thinking to variables of the chat template."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from serve.asgi.errors import ApiError, invalid_request, shortened
from serve.chat_format.reader import END_OF_THINK
from serve.chat_format.reasoning import id_of
from serve.chat_format.thinking_switch import NAMES, PRESERVE, ThinkingSwitch, switch_of
from serve.openai.service import Service, TokenizerLike
from serve.openai.thinking import ThinkingFields, agreed
from serve.telemetry.logs import warn_once

logger = logging.getLogger(__name__)

KEEP_HEADER = "x-thinking-keep"
UNKEPT = (
    "thinking.keep: this checkpoint's template leaves out the reasoning of earlier turns and "
    "has no switch for it; prompts stay as it makes them (said once; the header %s says it)"
)
ONE_EFFORT = (
    "this checkpoint's template does not read reasoning_effort: every level but none is the "
    "same thinking here, thinking_token_budget bounds it (said once)"
)


def template_variables(service: Service, body: ThinkingFields) -> dict[str, Any]:
    """Return the template variables that carry a request's fields about thinking.

    Raises 400 if the checkpoint cannot do it or `chat_template_kwargs` contradict the fields.
    """
    switch = switch_of(service.tokenizer.template_text)
    given = body.chat_template_kwargs or {}
    thinks = _asked(body.thinks, NAMES, given, switch)
    keeps = _asked(body.keeps, (PRESERVE,), given, switch)
    variables = {} if thinks is None else _thinking(thinks, body.effort, switch, service.tokenizer)
    if keeps is not None and switch.preserves:
        variables[PRESERVE] = keeps
    elif keeps and not service.roles.keeps_reasoning:
        warn_once(logger, UNKEPT, KEEP_HEADER)
    elif keeps is False and service.roles.keeps_reasoning:
        raise _contradiction(f"{PRESERVE} false: the template keeps the reasoning of every turn")
    for name in variables.keys() & given.keys():
        if given[name] not in (None, variables[name]):
            raise _contradiction(
                f"{name} {given[name]!r}: other fields ask for {variables[name]!r}"
            )
    return variables


def keep_header(service: Service, body: ThinkingFields) -> dict[str, str]:
    """Return the header for a body whose requested reasoning the template drops; else {}."""
    switch = switch_of(service.tokenizer.template_text)
    keeps = _asked(body.keeps, (PRESERVE,), body.chat_template_kwargs or {}, switch)
    unkept = keeps and not switch.preserves and not service.roles.keeps_reasoning
    return {KEEP_HEADER: "unsupported"} if unkept else {}


def _asked(
    field: bool | None, names: Sequence[str], given: Mapping[str, Any], switch: ThinkingSwitch
) -> bool | None:
    """Return what a field asks for. Unread variables count too: clients send other models' ones."""
    unread = {name: given.get(name) for name in names if not switch.reads(name)}
    bools = {name: value for name, value in unread.items() if isinstance(value, bool)}
    try:
        return agreed({"other fields": field, **bools})
    except ValueError as error:
        raise _contradiction(str(error)) from error


def _contradiction(message: str) -> ApiError:
    name = "chat_template_kwargs"
    return invalid_request(shortened(f"{name}: {message}"), param=name)


def _thinking(
    thinks: bool, effort: str | None, switch: ThinkingSwitch, tokenizer: TokenizerLike
) -> dict[str, Any]:
    can_think = id_of(END_OF_THINK, tokenizer) is not None
    try:
        given = switch.variables(thinks, effort, can_think=can_think)
    except ValueError as error:
        param = "reasoning_effort" if effort else "thinking"
        raise invalid_request(f"{param}: {error}", param=param) from error
    if thinks and effort and not switch.takes_effort:
        warn_once(logger, ONE_EFFORT)
    return given
