"""Formats of weights that stay quantised in memory, one row of `WEIGHT_FORMATS` each.

Rows of a matrix are outputs, as in checkpoints: scales belong to rows or to runs along a row, and
kernels read weights [N, K] with K contiguous.

    weights        values                               scale
    fp8_channel    float8_e4m3 [out, in]                float32 [out]
    fp8_block      float8_e4m3 [out, in]                float32 [ceil(out / 128), ceil(in / 128)]
    int4_channel   uint8 [out, in / 2], two's compl.    float32 [out]
    int4_group     uint8 [out, in / 2], two's compl.    [out, in / 32]; q * scale is rounded to it
    mxfp4          uint8 [out, in / 2], e2m1            uint8 [out, in / 32], e8m0
    nvfp4          uint8 [out, in / 2], e2m1            float32 [out, in / 16]

A byte holds two four-bit values, the even element in the low nibble. Stacked matrices (experts)
have one more leading axis in both arrays.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num, UInt8

ActivationFormat = Literal["none", "fp8_token", "fp8_group", "int8_token", "mxfp4"]

GROUP = 32
"""Number of values that share a scale in int4_group and mxfp4."""
BLOCK = 128
"""Rows and columns that share a scale in fp8_block; also the activations' run in fp8_group."""
E8M0_BIAS = 127
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def _fp8(values: Num[Array, "*rows inputs"]) -> Float[Array, "*rows inputs"]:
    return values.astype(jnp.float32)


def _int4(pairs: UInt8[Array, "*rows half"]) -> Float[Array, "*rows inputs"]:
    return ((_nibbles(pairs).astype(jnp.int8) ^ 8) - 8).astype(jnp.float32)


def _e2m1(pairs: UInt8[Array, "*rows half"]) -> Float[Array, "*rows inputs"]:
    nibbles = _nibbles(pairs)
    magnitude = jnp.asarray(_E2M1, jnp.float32)[nibbles & 7]
    return jnp.where(nibbles & 8, -magnitude, magnitude)


def _nibbles(pairs: UInt8[Array, "*rows half"]) -> UInt8[Array, "*rows inputs"]:
    both = jnp.stack([pairs & 0xF, pairs >> 4], axis=-1)
    return both.reshape(*pairs.shape[:-1], -1)


def _times_power(numbers: Array, scale: UInt8[Array, "*scales"]) -> Array:
    return jnp.ldexp(numbers, scale.astype(jnp.int32) - E8M0_BIAS)


def _times_rounded(numbers: Array, scale: Float[Array, "*scales"]) -> Array:
    product = numbers * scale.astype(jnp.float32)
    return product.astype(scale.dtype).astype(jnp.float32)


@dataclass(frozen=True)
class WeightFormat:
    """One way to keep a matrix [out, in] in memory.

    Attributes:
        bits: Of a stored value: 8 for float8_e4m3fn, 4 for two values in a uint8.
        numbers: Decodes stored values to float32 [.., in], without their scales.
        shared: Rows and columns that share a scale; None for all columns of a row.
        scale_dtype: Dtype of the scales.
        times: Multiplies numbers by scales that are spread to their shape.
        rounded: Whether products are rounded to the scale's dtype, as compressed-tensors does. The
            scale therefore keeps the dtype that it has in its checkpoint.
        activations: Formats to which a product may quantise its other operand.
    """

    name: str
    bits: int
    numbers: Callable[[Array], Array]
    shared: tuple[int, int | None]
    activations: tuple[ActivationFormat, ...] = ("none",)
    scale_dtype: DTypeLike = jnp.float32
    times: Callable[[Array, Array], Array] = jnp.multiply
    rounded: bool = False

    @property
    def values_dtype(self) -> DTypeLike:
        return jnp.uint8 if self.bits == 4 else jnp.float8_e4m3fn

    @property
    def values_per_byte(self) -> int:
        """Two for four-bit formats, else one."""
        return 8 // self.bits

    @property
    def per_row(self) -> bool:
        """Return whether a scale holds for a whole row, so that it may be applied to the sum."""
        return self.shared[1] is None

    @property
    def in_blocks(self) -> bool:
        """Return whether several rows share a scale."""
        return self.shared[0] > 1

    @property
    def group(self) -> int | None:
        """Number of values of a row that share a scale; None for whole rows and for blocks."""
        return None if self.in_blocks else self.shared[1]

    @property
    def inseparable(self) -> tuple[int, int]:
        """Stored values [outputs, inputs] that share a scale and cannot be separated; 1 if any can.
        The scale of a whole row also holds for each part of the row."""
        rows, columns = self.shared
        return (rows, 1 if columns is None else columns // self.values_per_byte)

    def scale_shape(self, outputs: int, inputs: int) -> tuple[int, ...]:
        """Return the shape of the scales of one [outputs, inputs] matrix."""
        rows, columns = self.shared
        if columns is None:
            return (outputs,)
        if not self.in_blocks:
            return (outputs, inputs // columns)
        return (math.ceil(outputs / rows), math.ceil(inputs / columns))

    def spread(
        self, scale: Num[Array, "*stack_and_scales"], outputs: int, inputs: int
    ) -> Num[Array, "*stack _outputs _inputs"]:
        """Repeat scales for every value of [outputs, inputs], or let them broadcast to it."""
        rows, columns = self.shared
        if columns is None:
            return scale[..., None]
        if rows > 1:
            scale = jnp.repeat(scale, rows, axis=-2)[..., :outputs, :]
        return jnp.repeat(scale, columns, axis=-1)[..., :inputs]


WEIGHT_FORMATS = {
    row.name: row
    for row in (
        WeightFormat("fp8_channel", 8, _fp8, (1, None), ("none", "fp8_token")),
        WeightFormat("fp8_block", 8, _fp8, (BLOCK, BLOCK), ("none", "fp8_group")),
        WeightFormat("int4_channel", 4, _int4, (1, None), ("none", "int8_token", "fp8_token")),
        WeightFormat(
            "int4_group",
            4,
            _int4,
            (1, GROUP),
            scale_dtype=jnp.bfloat16,
            times=_times_rounded,
            rounded=True,
        ),
        WeightFormat(
            "mxfp4",
            4,
            _e2m1,
            (1, GROUP),
            ("none", "mxfp4"),
            scale_dtype=jnp.uint8,
            times=_times_power,
        ),
        WeightFormat("nvfp4", 4, _e2m1, (1, 16)),
    )
}
"""All formats by name."""


@dataclass(frozen=True)
class QuantFormat:
    """Format of stored weights, and of the activations that a product quantises for them.

    `weights` is a name in `WEIGHT_FORMATS`. Raises ValueError for an unknown name and for
    activations that the weights' scheme does not support.
    """

    weights: str
    activations: ActivationFormat = "none"

    def __post_init__(self) -> None:
        if self.weights not in WEIGHT_FORMATS:
            raise ValueError(f"expected weights of {tuple(WEIGHT_FORMATS)}, got {self.weights!r}")
        if self.activations not in (known := self.stored.activations):
            raise ValueError(
                f"{self.weights} weights take activations {' or '.join(known)}, "
                f"got {self.activations!r}"
            )

    @property
    def stored(self) -> WeightFormat:
        """The weights' row of `WEIGHT_FORMATS`."""
        return WEIGHT_FORMATS[self.weights]
