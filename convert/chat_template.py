"""Chat templates, rendered as data in a sandbox, with what people typed kept apart from markup."""

import datetime
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from convert.safetensors_files import read_json

TEMPLATE_FILE = "chat_template.jinja"
MARK = "\ud800"
"""Half a surrogate pair: no sound text has one, and encoded text never does."""


def load_template(directory: Path) -> Template | None:
    """Compiles the template of `read_template`; None without one.

    Raises ValueError when the template is not valid jinja.
    """
    source = read_template(directory)
    return None if source is None else compile_template(source, str(directory))


def compile_template(source: str, origin: str) -> Template:
    """Compiles a template; ValueError, naming its origin, when it is not valid jinja."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"{origin}: the chat template is not valid jinja: {error}") from error


def break_specials(value: Any, special: Sequence[str]) -> Any:
    """Puts MARK inside every special string in a JSON value, so that it reads as plain text.

    Also where a string ends or begins with a part of one, which two strings side by side, or one
    beside the template's text, could make whole. Lone surrogates, of which MARK is one, become
    U+FFFD, which is what they are encoded as.
    """
    return _Breaker(special).broken(value)


def sound(text: str) -> str:
    """The text with U+FFFD for lone surrogates: JSON escapes bring them, UTF-8 has none."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Breaker:
    """Breaks special strings."""

    def __init__(self, special: Sequence[str]) -> None:
        self._special = special
        self._longest = max(map(len, special), default=1) - 1
        self._starts = {text[0] for text in special}
        self._ends = {text[-1] for text in special}

    def broken(self, value: Any) -> Any:
        """The JSON value with all its strings broken."""
        if isinstance(value, dict):
            return {self.broken(key): self.broken(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self.broken(item) for item in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, value: str) -> str:
        value = sound(value)
        for text in self._special:
            value = value.replace(text, text[0] + MARK + text[1:])
        before = MARK if self._begins_inside(value) else ""
        return before + value + (MARK if self._ends_inside(value) else "")

    def _ends_inside(self, value: str) -> bool:
        """Whether a special string may begin at the end of the value."""
        end = value[-self._longest :]
        places = [i for i, char in enumerate(end) if char in self._starts]
        return any(text.startswith(end[i:]) for i in places for text in self._special)

    def _begins_inside(self, value: str) -> bool:
        """Whether a special string may end at the beginning of the value."""
        begin = value[: self._longest]
        places = [i + 1 for i, char in enumerate(begin) if char in self._ends]
        return any(text.endswith(begin[:i]) for i in places for text in self._special)


def read_template(directory: Path) -> str | None:
    """The text of chat_template.jinja, or of the template inside tokenizer_config.json."""
    if (directory / TEMPLATE_FILE).is_file():
        return (directory / TEMPLATE_FILE).read_text(encoding="utf-8")
    config = directory / "tokenizer_config.json"
    source = read_json(config).get("chat_template") if config.is_file() else None
    if isinstance(source, list):
        named = {entry["name"]: entry["template"] for entry in source}
        return named.get("default")
    return source


def _to_json(value: Any, **options: Any) -> str:
    """jinja's own filter escapes HTML, which no model was trained on."""
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
