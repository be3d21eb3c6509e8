"""`--speculative-config.model DIR` as vLLM takes it: a key of a JSON flag as a flag of its own."""

import json
from collections.abc import Sequence
from typing import Any

DOTTED = ("--speculative-config",)


def join_dotted(argv: Sequence[str]) -> list[str]:
    """Gives each flag's keys back as one JSON object; ValueError for a key without a value, and
    for keys beside the object itself."""
    kept: list[str] = []
    found: dict[str, dict[str, Any]] = {}
    words = iter(argv)
    for word in words:
        name, equals, value = word.partition("=")
        flag, dot, key = name.partition(".")
        if not dot or flag not in DOTTED:
            kept.append(word)
            continue
        value = value if equals else next(words, None)
        if value is None:
            raise ValueError(f"{name} needs a value")
        found.setdefault(flag, {})[key.replace("-", "_")] = _read(value)
    for flag, config in found.items():
        if any(word.partition("=")[0] == flag for word in kept):
            raise ValueError(f"give {flag} as one JSON object or key by key, not both")
        kept += [flag, json.dumps(config)]
    return kept


def _read(text: str) -> Any:
    """JSON where it is some, else the text itself: names of directories need no quotes."""
    try:
        return json.loads(text)
    except ValueError:
        return text
