"""Report unknown fields of a config.json, so that none is ignored silently."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from convert.published.quantization_config import unknown_quantization_fields
from eagle3_jax.config.brief import brief
from eagle3_jax.config.draft import DRAFT_FIELDS
from eagle3_jax.config.draft_layouts import is_draft
from eagle3_jax.config.targets import target_fields

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 40


def unknown_fields(config: Mapping[str, Any]) -> list[str]:
    """Return the unknown fields of a target's or draft's config.json that was read."""
    known = DRAFT_FIELDS if is_draft(config) else target_fields(config)
    return [*known.unknown(config), *unknown_quantization_fields(config)]


def warn_of_unknown_fields(file: Path, config: Mapping[str, Any]) -> None:
    """Log one warning that names a file's unknown fields, if there are any."""
    for note in unknown_fields_notes(file, config):
        _LOG.warning(note)


def unknown_fields_notes(file: Path, config: Mapping[str, Any]) -> list[str]:
    """Return one line that names a file's unknown fields, or none if all are known."""
    if not (names := unknown_fields(config)):
        return []
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return [
        f"{file}: ignored fields that this version does not know: "
        f"{', '.join(map(brief, names[:_MOST_NAMED]))}{more}; a model that needs one of them "
        "would compute something else"
    ]
