"""Where a checkpoint keeps its chat template."""

from pathlib import Path

from jinja2 import Template

from convert.chat_template import compile_template
from convert.safetensors_files import read_json

TEMPLATE_FILE = "chat_template.jinja"


def load_template(directory: Path) -> Template | None:
    """Compiles the template of `read_template`; None without one.

    Raises ValueError when the template is not valid jinja.
    """
    source = read_template(directory)
    return None if source is None else compile_template(source, str(directory))


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
