"""Chat templates, rendered as data in a sandbox, with what people typed kept apart from markup."""

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
"""What expressions in a template may raise besides jinja's own errors."""
MARK = "\ud800"
"""Half a surrogate pair: no sound text has one, and encoded text never does."""


def compile_template(source: str, origin: str) -> Template:
    """Compiles a template; ValueError, naming its origin, when it is not valid jinja."""
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
    """The variables that a valid template reads and does not set itself.

    jinja's own function for this works constant expressions out, whatever the environment says: a
    template with `10 ** 10 ** 8` would hold the process for minutes.
    """
    environment = _environment()
    tracking = meta.TrackingCodeGenerator(environment)
    tracking.optimizer = None
    tracking.visit(environment.parse(source))
    return frozenset(tracking.undeclared_identifiers)


class _Generation(Extension):
    """Read `{% generation %}` blocks as their content alone.

    Trainers mark with them what the model says in a template that transformers renders.
    """

    tags: ClassVar[set[str]] = {"generation"}  # pyright: ignore[reportIncompatibleVariableOverride]

    def parse(self, parser: Parser) -> list[Node]:
        """Return the nodes between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    # Nothing is worked out before a chat is rendered, which may be limited: not by the optimiser,
    # nor for an output that seems to be constant.
    return ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, _Generation],
        optimized=False,
        finalize=_as_it_is,
    )


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


def render(
    template: Template, messages: Sequence[Any], most_chars: int | None = None, /, **values: Any
) -> str:
    """The text of a chat; ValueError where the template refuses it, or makes more of it."""
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
