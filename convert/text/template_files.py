"""Where a checkpoint keeps its chat template."""

from pathlib import Path

from convert.files.safetensors_files import read_json

TEMPLATE_FILE = "chat_template.jinja"


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
