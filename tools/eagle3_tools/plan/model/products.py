"""Bytes and operations of one product of an abstract model on a device."""

import math
from dataclasses import dataclass

from flax import nnx

from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.moe import Experts
from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_tools.plan.model.split import Parts, device_shape

Weight = nnx.Variable | QuantizedKernel


@dataclass(frozen=True)
class Product:
    """Weights of one launch on one device.

    elements: numbers in the matrices. width: numbers of an input and an output row, all stacked
    matrices together. weights, activations: their format, as in `QuantFormat`; "" is plain floats.
    """

    nbytes: int
    elements: int
    width: int
    weights: str = ""
    activations: str = "none"


@dataclass(frozen=True)
class Device:
    """One device of a mesh with these parts; computes products on it."""

    parts: Parts

    def product(self, *weights: Weight) -> Product:
        """Describe a product of matrices [*stack, in, out] that share a launch and their rows."""
        shapes = [self._matrix(weight) for weight in weights]
        first, form = weights[0], None
        if isinstance(first, QuantizedKernel):
            form = first.format
        *stack, inputs, _ = shapes[0]
        outputs = sum(math.prod(shape) // shape[-2] for shape in shapes)
        return Product(
            sum(map(self._nbytes, weights)),
            sum(map(math.prod, shapes)),
            math.prod(stack) * inputs + outputs,
            form.weights if form else "",
            form.activations if form else "none",
        )

    def block(self, mlp: MLP | Experts) -> Product:
        """Describe a SwiGLU block of one or all experts: rows are read once and written once."""
        kernels: tuple[Weight, ...]
        if isinstance(mlp, Experts):
            kernels = mlp.gate_proj, mlp.up_proj, mlp.down_proj
        else:
            kernels = mlp.gate_proj.kernel, mlp.up_proj.kernel, mlp.down_proj.kernel
        whole = self.product(*kernels)
        inputs = self._matrix(kernels[0])[-2]
        return Product(whole.nbytes, whole.elements, 2 * inputs, whole.weights, whole.activations)

    def _matrix(self, weight: Weight) -> tuple[int, ...]:
        """Return a weight's shape [*stack, in, out] on a device."""
        if not isinstance(weight, QuantizedKernel):
            return self._shape(weight)
        *stack, outputs, stored = self._shape(weight.values)
        return (*stack, stored * weight.format.stored.values_per_byte, outputs)

    def _nbytes(self, weight: Weight) -> int:
        quantized = isinstance(weight, QuantizedKernel)
        arrays = (weight.values, weight.scale) if quantized else (weight,)
        return sum(math.prod(self._shape(a)) * a.get_value().dtype.itemsize for a in arrays)

    def _shape(self, variable: nnx.Variable) -> tuple[int, ...]:
        return device_shape("a weight", variable, self.parts)
