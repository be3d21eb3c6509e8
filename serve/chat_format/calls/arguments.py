"""The arguments of a tool call as an object, whatever text the model or the client wrote."""

import json
import math
from typing import Any, NoReturn

INVALID = "INVALID_JSON"
"""Key of a text that is no JSON object; Anthropic's guide for fine-grained streaming names it."""


def read_arguments(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object.

    Raw control characters inside strings are accepted, and a text that was encoded more than once
    is decoded as often. No arguments and null are an empty object. Everything else becomes
    `{INVALID: text}`: a call that was cut, a list, a number, NaN, text behind the object. Nothing
    that the model wrote is lost, and no call that it made can end the conversation.
    """
    if isinstance(arguments, dict):
        return arguments
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    try:
        read = _READER.decode(unwrapped(text).strip() or "null")
    except (ValueError, RecursionError):
        read = text
    if read is None:
        return {}
    return read if isinstance(read, dict) else {INVALID: text}


def written_arguments(arguments: dict[str, Any]) -> str:
    """Return the text of arguments that `read_arguments` returned."""
    invalid = arguments.get(INVALID) if len(arguments) == 1 else None
    return invalid if isinstance(invalid, str) else json.dumps(arguments, ensure_ascii=False)


def unwrapped(text: str) -> str:
    """Return the JSON text inside a JSON string, inside another one and so on."""
    while text.lstrip().startswith('"'):
        try:
            text = _READER.decode(text.strip())
        except ValueError:
            break
    return text


def _finite(number: str) -> float:
    read = float(number)
    return read if math.isfinite(read) else _refuse(number)


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{number} is not JSON")


_READER = json.JSONDecoder(strict=False, parse_float=_finite, parse_constant=_refuse)
