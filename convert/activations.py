"""Choose the format of the activations that quantised weights are multiplied with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pallas_kernels import QuantFormat
from pallas_kernels.quantized import ActivationFormat

Activations = bool | Literal["int8", "fp8"]
"""True: as the published scheme says; False: not quantised; or one of the two for INT4 weights."""

_BY_TOKEN: dict[Activations, ActivationFormat] = {"int8": "int8_token", "fp8": "fp8_token"}


def check_activations(wanted: Activations) -> None:
    """Raises ValueError for anything else."""
    if wanted not in (True, False, *_BY_TOKEN):
        raise ValueError(f"quantize_activations must be True, False, int8 or fp8, got {wanted!r}")


def choose_activations(
    published: Mapping[str, QuantFormat], wanted: Activations
) -> dict[str, QuantFormat]:
    """Parameter -> format, from the formats as published."""
    return {path: _choose(format, wanted) for path, format in published.items()}


def _choose(format: QuantFormat, wanted: Activations) -> QuantFormat:
    if wanted is False:
        return replace(format, activations="none")
    if wanted is True or format.weights != "int4_channel":
        return format
    return replace(format, activations=_BY_TOKEN[wanted])
