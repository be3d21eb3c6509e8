"""Render chat templates in a sandbox, with users' text kept apart from the template's markup."""

import datetime
import json
from collections.abc import Sequence
from functools import lru_cache, partial
from typing import Any, ClassVar

from jinja2 import Template, TemplateError, meta, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from convert.text.special_texts import SpecialTexts

BUGS_OF_TEMPLATES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors besides jinja's own that expressions in a template may raise."""
MARK = "\ud800"
"""Half a surrogate pair, which neither valid nor encoded text contains."""


def compile_template(source: str, origin: str) -> Template:
    """Compile a template; ValueError, naming its origin, if it is not valid jinja."""
    environment = _environment()
    # jinja's own filter escapes HTML, which no model was trained on.
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ValueError(f"{origin}: the chat template is not valid jinja: {error}") from error


@lru_cache(maxsize=8)
def variables_of(source: str) -> frozenset[str]:
    """Return the variables that a valid template reads and does not set itself.

    jinja's own function evaluates constant expressions regardless of the environment's settings: a
    template with `10 ** 10 ** 8` would block the process for minutes.
    """
    environment = _environment()
    tracking = meta.TrackingCodeGenerator(environment)
    tracking.optimizer = None
    tracking.visit(environment.parse(source))
    return frozenset(tracking.undeclared_identifiers)


class _Generation(Extension):
    """A jinja extension that reads `{% generation %}` blocks as their content alone.

    In templates for transformers, trainers mark the model's part of a chat with these tags.
    """

    tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def parse(self, parser: Parser) -> list[Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    # Evaluate nothing before a chat is rendered, which has limits: disable the optimiser and, by
    # `finalize`, the constant folding of output.
    return ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        optimized=False,
        finalize=_as_it_is,
    )


def break_specials(value: Any, special: SpecialTexts) -> Any:
    """Insert MARK into every special string in a JSON value, so that it is read as plain text.

    Lone surrogates, such as a MARK in the value, become U+FFFD, which is how they would be encoded.
    """
    if isinstance(value, dict):
        items = value.items()
        return {break_specials(key, special): break_specials(item, special) for key, item in items}
    if isinstance(value, (list, tuple)):
        return [break_specials(item, special) for item in value]
    return special.broken(sound(value), MARK) if isinstance(value, str) else value


def sound(text: str) -> str:
    """Replace lone surrogates by U+FFFD: JSON escapes can produce them, UTF-8 cannot hold them."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def render(
    template: Template, messages: Sequence[Any], most_chars: int | None = None, /, **values: Any
) -> str:
    """Render a chat; ValueError if the template fails or exceeds `most_chars` characters."""
    pieces, size = [], 0
    try:
        for piece in template.generate(messages=messages, **values):
            pieces.append(piece)
            size += len(piece)
            if most_chars is not None and size > most_chars:
                raise ValueError(f"they become more than {most_chars} characters")
    except (TemplateError, *BUGS_OF_TEMPLATES) as error:
        raise ValueError(f"the chat template refuses these messages: {error}") from error
    return "".join(pieces)


@pass_context
def _as_it_is(_: Context, value: Any) -> Any:
    return value


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
