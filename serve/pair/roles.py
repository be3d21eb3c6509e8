"""Target and draft, told apart before anything of them is looked for."""

from pathlib import Path

from convert.files.json_object import parse_object
from eagle3_jax.config.draft_layouts import refuse_draft
from eagle3_jax.config.targets import refuse_target


def check_roles(target: Path, draft: Path | None) -> None:
    """Raises ValueError for a directory that is the other one; what is wrong with its config.json
    otherwise its reader says."""
    for directory, refuse in ((target, refuse_draft), (draft, refuse_target)):
        if directory is None:
            continue
        path = directory / "config.json"
        try:
            config = parse_object(path.read_bytes())
        except (OSError, ValueError):
            continue
        try:
            refuse(config)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
