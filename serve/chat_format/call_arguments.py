"""Parses the arguments of a tool call to an object, whatever text the model or client wrote."""

import json
import math
import threading
from itertools import chain
from typing import Any, NoReturn

MOST_DEPTH = 256
"""Maximum nesting that a template gets. Python's stack suffices for about 490 levels when special
tokens in them are broken up."""
INVALID = "INVALID_JSON"
"""Key for a text that is not a JSON object, from Anthropic's guide to fine-grained streaming."""


def read_arguments(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object.

    Raw control characters in strings are accepted, and a text that was encoded several times is
    decoded as often. No arguments and null are an empty object. Everything else becomes
    `{INVALID: text}`: a truncated call, a list, a number, NaN, text after the object, an object
    above MOST_DEPTH. No text of the model is lost, and no call can make a conversation fail.
    """
    read = arguments
    if not isinstance(arguments, dict):
        try:
            read = _READER.decode(unwrapped(text_of(arguments)).strip() or "null")
        except (ValueError, RecursionError):
            pass
    if read is None:
        return {}
    is_object = isinstance(read, dict) and not is_too_deep(read)
    return read if is_object else {INVALID: text_of(arguments)}


def is_too_deep(value: Any) -> bool:
    """Return whether a value has more than MOST_DEPTH levels of lists and objects."""
    level, depth = [value], 0
    while level := [inner for inner in level if isinstance(inner, dict | list)]:
        if (depth := depth + 1) > MOST_DEPTH:
            return True
        values = (outer.values() if isinstance(outer, dict) else outer for outer in level)
        level = chain.from_iterable(values)
    return False


def text_of(arguments: Any) -> str:
    """Return the text of arguments that are a text, or any other value of a body."""
    if isinstance(arguments, str):
        return arguments
    try:
        return json.dumps(arguments, ensure_ascii=False)
    except RecursionError:  # The body was parsed with more free stack. A thread has all of it.
        written: list[str] = []
        write = json.JSONEncoder(ensure_ascii=False).encode
        thread = threading.Thread(target=lambda: written.append(write(arguments)))
        thread.start()
        thread.join()
        return written[0]


def written_arguments(arguments: dict[str, Any]) -> str:
    """Return the text of arguments that `read_arguments` returned."""
    invalid = arguments.get(INVALID) if len(arguments) == 1 else None
    return invalid if isinstance(invalid, str) else text_of(arguments)


def unwrapped(text: str) -> str:
    """Return the JSON text inside a JSON string, which may be nested in further ones."""
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
