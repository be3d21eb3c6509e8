"""Weight matrices that stay quantised in memory: values, scales and their format.

Rows are outputs, as in checkpoints: scales belong to rows or to runs along a row, and kernels read
weights [N, K] with K contiguous.

    weights        values                               scale
    fp8_channel    float8_e4m3 [out, in]                float32 [out]
    fp8_block      float8_e4m3 [out, in]                float32 [ceil(out / 128), ceil(in / 128)]
    int4_channel   uint8 [out, in / 2], two's compl.    float32 [out]
    int4_group     uint8 [out, in / 2], two's compl.    [out, in / 32]; q * scale is rounded to it
    mxfp4          uint8 [out, in / 2], e2m1            uint8 [out, in / 32], e8m0

A byte holds two four-bit values, the even element in the low nibble. Stacked matrices (experts)
have one more leading axis in both arrays.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import jax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

WeightFormat = Literal["fp8_channel", "fp8_block", "int4_channel", "int4_group", "mxfp4"]
ActivationFormat = Literal["none", "fp8_token", "fp8_group", "int8_token", "mxfp4"]

GROUP = 32
"""Number of values that share a scale in int4_group and mxfp4."""
BLOCK = 128
"""Rows and columns that share a scale in fp8_block; also the activations' run in fp8_group."""

_FOUR_BIT = ("int4_channel", "int4_group", "mxfp4")
_ACTIVATIONS: dict[str, tuple[str, ...]] = {
    "fp8_channel": ("none", "fp8_token"),
    "fp8_block": ("none", "fp8_group"),
    "int4_channel": ("none", "int8_token", "fp8_token"),
    "int4_group": ("none",),
    "mxfp4": ("none", "mxfp4"),
}


@dataclass(frozen=True)
class QuantFormat:
    """Format of stored weights, and of the activations that a product quantises for them.

    Raises ValueError for activations that the weights' scheme does not support.
    """

    weights: WeightFormat
    activations: ActivationFormat = "none"

    def __post_init__(self) -> None:
        known = _ACTIVATIONS[self.weights]
        if self.activations not in known:
            raise ValueError(
                f"{self.weights} weights take activations {' or '.join(known)}, "
                f"got {self.activations!r}"
            )

    @property
    def values_per_byte(self) -> int:
        """Two for four-bit formats, else one."""
        return 2 if self.weights in _FOUR_BIT else 1

    @property
    def groups(self) -> tuple[int, int]:
        """Stored values [outputs, inputs] that share a scale and cannot be separated; 1 if any can.
        The scale of a whole row also holds for each part of the row."""
        if self.weights == "fp8_block":
            return (BLOCK, BLOCK)
        return (1, GROUP // 2) if self.weights in ("int4_group", "mxfp4") else (1, 1)

    def scale_shape(self, outputs: int, inputs: int) -> tuple[int, ...]:
        """Return the shape of the scales of one [outputs, inputs] matrix."""
        if self.weights in ("fp8_channel", "int4_channel"):
            return (outputs,)
        if self.weights == "fp8_block":
            return (math.ceil(outputs / BLOCK), math.ceil(inputs / BLOCK))
        return (outputs, inputs // GROUP)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedArray:
    """Values and scales of one matrix or of a stack of them; `format` is static."""

    values: Num[Array, "*stack outputs stored"]
    scale: Num[Array, "*stack_and_scales"]
    format: QuantFormat = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape [*stack, in, out], as that of a plain kernel."""
        *stack, outputs, stored = self.values.shape
        return (*stack, stored * self.format.values_per_byte, outputs)

    def __getitem__(self, index: Any) -> "QuantizedArray":
        """Return a part of the stack."""
        return replace(self, values=self.values[index], scale=self.scale[index])


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class QuantizedRows:
    """Activations that a previous kernel quantised to the GPU's float8, with a scale for each row
    or run of 128 inputs, as `fp8_per_token` or `fp8_per_group` does. dtype (static): that of a
    product."""

    values: Num[Array, "*rows inputs"]
    scale: Float[Array, "*scales"]
    dtype: DTypeLike = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape [*rows, inputs]."""
        return self.values.shape

    @property
    def activations(self) -> ActivationFormat:
        """Activation format of the kernels that multiply these rows."""
        return "fp8_group" if self.scale.ndim == self.values.ndim else "fp8_token"
