"""Open a published checkpoint directory: its configuration, and its weights from headers alone.

Unknown fields of config.json are reported, so that none is ignored silently.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.files.safetensors_files import Checkpoint, open_checkpoint, read_json
from convert.hub.files import MODELOPT
from convert.published.quantization_config import (
    QuantizationConfig,
    has_quantization,
    read_quantization_config,
    unknown_quantization_fields,
)
from convert.published.weights import Int4OrderChoice, Weight, find_weights
from eagle3_jax.config.draft import DRAFT_FIELDS
from eagle3_jax.config.draft_layouts import is_draft
from eagle3_jax.config.published import brief, read_mapping
from eagle3_jax.config.targets import refuse_unsupported, target_fields

_LOG = logging.getLogger(__name__)
_MOST_NAMED = 40


@dataclass(frozen=True)
class Published:
    """The contents of a checkpoint directory, with tensors unread.

    `misfits` are errors about tensors of no known form, which `make_plan` reports with all others.
    """

    directory: Path
    config: Mapping[str, Any]
    checkpoint: Checkpoint
    weights: list[Weight]
    misfits: list[str]
    quantization: QuantizationConfig | None

    @property
    def weight_shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Names and [out, in] shapes of all weights."""
        return {weight.name: weight.shape for weight in self.weights}


def open_published(directory: str | Path, *, int4_order: Int4OrderChoice = "auto") -> Published:
    """Read config.json and every header.

    Raises FileNotFoundError for missing files and ValueError for damaged ones.
    """
    directory = Path(directory)
    if not directory.is_dir():
        raise FileNotFoundError(f"checkpoint directory {directory} does not exist")
    config = _read_config(directory)
    try:
        refuse_unsupported(config)
        quantization = read_quantization_config(config)
    except ValueError as error:
        raise ValueError(f"{directory / 'config.json'}: {error}") from error
    checkpoint = open_checkpoint(directory)
    weights, misfits = find_weights(checkpoint.tensors.values(), int4_order)
    return Published(directory, config, checkpoint, weights, misfits, quantization)


def _read_config(directory: Path) -> Mapping[str, Any]:
    """Read config.json, with ModelOpt's own file as its `quantization_config` if it has none."""
    config, file = read_json(directory / "config.json"), directory / MODELOPT
    if not file.is_file() or has_quantization(config):
        return config
    given = read_mapping(read_json(file), "quantization")
    return {**config, "quantization_config": {"quant_method": "modelopt", **given}}


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
