"""Build abstract models and check them against checkpoint and devices before weights are read."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx
from jax.sharding import Mesh

from convert.device_memory import check_device_memory, device_bytes
from convert.fill import ParameterSource, fill, named_variables
from eagle3_jax.layers.linear import Embedding, Linear
from eagle3_jax.layers.moe import Experts
from eagle3_jax.layers.quantized import quantize_structure
from eagle3_jax.mesh import check_units, mesh_of, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from pallas_kernels import QuantFormat
from pallas_kernels.quantized import ActivationFormat

Activations = bool | Literal["int8", "fp8"]
"""True: the published scheme. False: unquantised. "int8" or "fp8": the format for INT4 weights."""

_BY_TOKEN: dict[Activations, ActivationFormat] = {"int8": "int8_token", "fp8": "fp8_token"}

Model = TypeVar("Model", Target, Eagle3Draft, VisionModel)


@dataclass(frozen=True)
class AbstractModel(Generic[Model]):
    """An abstract model with the source of its parameters.

    Each abstract parameter has its final dtype, shape and sharding. The submodules in `shared`
    belong to another model and are not filled.
    """

    model: Model
    source: ParameterSource
    shared: Collection[str] = ()

    @property
    def devices(self) -> list[Any]:
        """Devices of this process that will hold the model."""
        mesh = mesh_of(self.model)
        return jax.local_devices()[:1] if mesh is None else list(mesh.local_devices)

    @property
    def device_bytes(self) -> int:
        """Bytes of the model's own parameters on each device."""
        own = named_variables(self.model, self.shared)
        return device_bytes(variable.get_value() for variable in own.values())

    def fill(self) -> Model:
        """Load the model; ValueError if a device is too small (checked first) or a value bad."""
        check_device_memory({"of weights": self.device_bytes}, self.devices)
        fill(self.model, self.source, self.shared)
        return self.model


def abstract_model(
    model: Model,
    source: ParameterSource,
    activations: Activations,
    mesh: Mesh | None = None,
    shared: Collection[str] = (),
    *,
    keep_bfloat16: bool = False,
) -> AbstractModel[Model]:
    """Make the source's quantised kernels, place the model on the mesh, and check it.

    `activations` is the format that quantised weights are multiplied with. `keep_bfloat16` keeps
    kernels and embeddings that the source has in bfloat16 so. Raises ValueError if the source or
    the mesh does not fit the model.
    """
    own = {path: f for path, f in source.formats.items() if path.split(".")[0] not in shared}
    quantize_structure(model, choose_activations(own, activations))
    source.check(named_variables(model, shared), shared)
    if keep_bfloat16:
        _narrow(model, source, shared)
    if mesh is not None:
        check_units(model.units, mesh)
        shard(model, mesh)
    return AbstractModel(model, source, shared)


def _narrow(model: nnx.Module, source: ParameterSource, shared: Collection[str]) -> None:
    """Make the kernels and embeddings bfloat16 that are bfloat16 in the source.

    Products and lookups widen them exactly (`pallas_kernels.streamed`), so that float32 on a CPU
    takes two bytes a weight. Attention's absorbed kernels, routers and norms stay float32.
    """
    for path, module in nnx.iter_modules(model):
        if not isinstance(module, Linear | Embedding | Experts) or str(path[0]) in shared:
            continue
        for name, variable in vars(module).items():
            full = ".".join(map(str, (*path, name)))
            if isinstance(variable, nnx.Param) and source.stored_dtype(full) == jnp.bfloat16:
                variable.set_value(jax.ShapeDtypeStruct(variable.get_value().shape, jnp.bfloat16))


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
