"""Open a published checkpoint directory: its configuration, and its weights from headers alone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from convert.files.safetensors_files import Checkpoint, open_checkpoint, read_json
from convert.published.quantization_config import QuantizationConfig, read_quantization_config
from convert.published.weights import Int4OrderChoice, Weight, find_weights
from eagle3_jax.config.targets import refuse_unsupported


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
    config = read_json(directory / "config.json")
    try:
        refuse_unsupported(config)
        quantization = read_quantization_config(config)
    except ValueError as error:
        raise ValueError(f"{directory / 'config.json'}: {error}") from error
    checkpoint = open_checkpoint(directory)
    weights, misfits = find_weights(checkpoint.tensors.values(), int4_order)
    return Published(directory, config, checkpoint, weights, misfits, quantization)
