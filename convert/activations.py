"""Choose the format of the activations that quantised weights are multiplied with."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from pallas_kernels import QuantFormat
from pallas_kernels.quantized import ActivationFormat

Activations = bool | Literal["int8", "fp8"]
"""True: the published scheme. False: unquantised. "int8" or "fp8": the format for INT4 weights."""

_BY_TOKEN: dict[Activations, ActivationFormat] = {"int8": "int8_token", "fp8": "fp8_token"}


def check_activations(wanted: Activations) -> None:
    """Raise ValueError if `wanted` is not one of the values of `Activations`."""
    if wanted not in (True, False, *_BY_TOKEN):
        raise ValueError(f"quantize_activations must be True, False, int8 or fp8, got {wanted!r}")


def choose_activations(
    published: Mapping[str, QuantFormat], wanted: Activations
) -> dict[str, QuantFormat]:
    """Map each parameter path to its format, given the formats as published."""
    if wanted is True:
        return dict(published)
    if wanted is False:
        return {path: replace(format, activations="none") for path, format in published.items()}
    int4 = QuantFormat("int4_channel", _BY_TOKEN[wanted])
    return {path: int4 if f.weights == int4.weights else f for path, f in published.items()}
