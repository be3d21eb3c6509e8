"""Weight matrices and rows that stay quantised in memory: values, scales and their format."""

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Num

from pallas_kernels import gpu
from pallas_kernels.quantized.formats import ActivationFormat, QuantFormat

_NAN, _NEGATIVE_ZERO = 0x7F, 0x80


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
        return (*stack, stored * self.format.stored.values_per_byte, outputs)

    def __getitem__(self, index: Any) -> "QuantizedArray":
        return replace(self, values=self.values[index], scale=self.scale[index])

    def numbers(self) -> Float[Array, "*stack outputs inputs"]:
        """Return the stored numbers in float32, without their scales."""
        return self.format.stored.numbers(self.values)


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


def dequantize(array: QuantizedArray) -> Float[Array, "*stack outputs inputs"]:
    """Return value times scale in float32, [*stack, out, in], which defines every weight format."""
    stored, numbers = array.format.stored, array.numbers()
    return stored.times(numbers, stored.spread(array.scale, *numbers.shape[-2:]))


def dtype_for_gpu(format: QuantFormat) -> DTypeLike:
    """Return the dtype of the values that kernels take: the GPU's own float8 if x is in float8."""
    widened = format.stored.bits == 4 or format.activations == "none"
    return format.stored.values_dtype if widened else gpu.current().fp8


def for_gpu(array: QuantizedArray) -> QuantizedArray:
    """Convert weights exactly to the form that `gpu.current()` multiplies with float8 activations.

    gfx942 uses e4m3fnuz, whose bits have half the value. So the bits stay and the scale doubles,
    except for -0, whose bits are e4m3fnuz's NaN. Weights that are widened before the product stay
    unchanged.
    """
    wanted = jnp.dtype(dtype_for_gpu(array.format))
    if array.values.dtype != jnp.float8_e4m3fn or wanted == array.values.dtype:
        return array
    bits = jax.lax.bitcast_convert_type(array.values, jnp.uint8)
    kept = jnp.where(bits == _NEGATIVE_ZERO, jnp.uint8(0), bits)
    kept = jnp.where(bits & 0x7F == _NAN, jnp.uint8(_NEGATIVE_ZERO), kept)
    values = jax.lax.bitcast_convert_type(kept, wanted)
    return replace(array, values=values, scale=array.scale * 2)
