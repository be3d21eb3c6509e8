"""Quantised kernels that replace a parameter of a linear layer or of experts."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from eagle3_jax.mesh import KV_HEADS, MeshAxes, split_of
from pallas_kernels import QuantFormat, QuantizedArray, gpu
from pallas_kernels.quantized import for_gpu


class Frozen(nnx.Variable):
    """Part of a quantised kernel: loaded with the weights and never trained."""


class QuantizedKernel(nnx.Module):
    """Values and scales of a quantised kernel of shape [*stack, in, out].

    Axis names follow the values. `kv_heads` is the number of KV heads in the outputs, if any.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        axes: tuple,
        format: QuantFormat,
        *,
        kv_heads: int | None = None,
    ):
        (*stack, inputs, outputs), stored = shape, format.stored
        values = (*stack, outputs, inputs // stored.values_per_byte)
        scale = (*stack, *stored.scale_shape(outputs, inputs))
        swapped = (*axes[:-2], axes[-1], axes[-2])
        self.values = Frozen(
            jax.ShapeDtypeStruct(values, stored.values_dtype),
            axes=swapped,
            groups=(*[1] * len(stack), *stored.inseparable),
        )
        self.scale = Frozen(
            jax.ShapeDtypeStruct(scale, stored.scale_dtype), axes=swapped[: len(scale)]
        )
        for part in () if kv_heads is None else (self.values, self.scale):
            part.set_metadata(kv_heads=kv_heads)
        self.format = format

    @property
    def split(self) -> tuple[MeshAxes | None, ...]:
        """Mesh axes over which [*stack, in, out] are split; None where they are whole."""
        *stack, outputs, inputs = split_of(self.values)
        return (*stack, inputs, outputs)

    def get_value(self) -> QuantizedArray:
        """Return the kernel as an operand of `pallas_kernels.matmul` and `grouped_mlp`."""
        return QuantizedArray(self.values.get_value(), self.scale.get_value(), self.format)


def kernel_split(kernel: nnx.Param | QuantizedKernel) -> tuple[MeshAxes | None, ...]:
    """Return the mesh axes that split a kernel's [*stack, in, out]; None where it is whole."""
    return split_of(kernel) if isinstance(kernel, nnx.Param) else kernel.split


def kernel_format(kernel: nnx.Param | QuantizedKernel) -> QuantFormat | None:
    """Return a kernel's quantised format, or None for a plain kernel."""
    return kernel.format if isinstance(kernel, QuantizedKernel) else None


def quantize_structure(model: nnx.Module, formats: Mapping[str, QuantFormat]) -> None:
    """Replace each named parameter of an abstract model by an empty quantised kernel.

    `formats` maps dotted parameter paths (`layers.1.mlp.experts.gate_proj`) to formats. Raises
    ValueError for a path that the model does not have.
    """
    for path, format in formats.items():
        *parents, name = path.split(".")
        module: Any = model
        try:
            for part in parents:
                module = module[int(part)] if part.isdigit() else getattr(module, part)
            parameter = getattr(module, name)
        except (AttributeError, IndexError) as error:
            raise ValueError(f"the model has no parameter {path} to keep quantised") from error
        metadata, shape = parameter.get_metadata(), parameter.get_value().shape
        heads = metadata.get(KV_HEADS)
        setattr(module, name, QuantizedKernel(shape, metadata["axes"], format, kv_heads=heads))


def fit_to_gpu(model: nnx.Module) -> nnx.Module:
    """Return the model with float8 kernels in this GPU's format; see `for_gpu`.

    The given model is unchanged, so both are in memory where they differ: on gfx942, unless the
    checkpoint was converted for it. Parameters may be shapes.
    """
    if gpu.current().fp8 == jnp.float8_e4m3fn:
        return model
    fitted = nnx.clone(model)
    for _, module in nnx.iter_modules(fitted):
        if isinstance(module, QuantizedKernel):
            parts = module.values.get_value(), module.scale.get_value()
            fit = partial(_fit, module.format)
            abstract = isinstance(parts[0], jax.ShapeDtypeStruct)
            # One program, because several processes may hold the parts.
            values, scale = jax.eval_shape(fit, *parts) if abstract else jax.jit(fit)(*parts)
            module.values.set_value(values)
            module.scale.set_value(scale)
    return fitted


def _fit(format: QuantFormat, values: jax.Array, scale: jax.Array) -> tuple[jax.Array, jax.Array]:
    fitted = for_gpu(QuantizedArray(values, scale, format))
    return fitted.values, fitted.scale
