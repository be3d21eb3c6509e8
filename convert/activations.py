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
    if wanted is True:
        return dict(published)
    if wanted is False:
        return {path: replace(format, activations="none") for path, format in published.items()}
    int4 = QuantFormat("int4_channel", _BY_TOKEN[wanted])
    return {path: int4 if f.weights == int4.weights else f for path, f in published.items()}
