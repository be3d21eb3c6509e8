"""Chat templates, rendered as data in a sandbox, with what people typed kept apart from markup."""

import datetime
import json
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from convert.safetensors_files import read_json
from convert.special_texts import SpecialTexts

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


def break_specials(value: Any, special: SpecialTexts) -> Any:
    """Puts MARK inside every special string in a JSON value, so that it reads as plain text.

    Lone surrogates, of which MARK is one, become U+FFFD, which is what they are encoded as.
    """
    if isinstance(value, dict):
        items = value.items()
        return {break_specials(key, special): break_specials(item, special) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [break_specials(item, special) for item in value]
    return special.broken(sound(value), MARK) if isinstance(value, str) else value


def sound(text: str) -> str:
    """The text with U+FFFD for lone surrogates: JSON escapes bring them, UTF-8 has none."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


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
