"""Abstract models, checked against their checkpoint and their devices before a weight is read."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import jax
from jax.sharding import Mesh

from convert.activations import Activations, choose_activations
from convert.device_memory import check_device_memory, device_bytes
from convert.fill import ParameterSource, fill, named_variables
from eagle3_jax.layers.quantized import quantize_structure
from eagle3_jax.mesh import check_units, mesh_of, shard
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel

Model = TypeVar("Model", Target, Eagle3Draft, VisionModel)


@dataclass(frozen=True)
class Outline(Generic[Model]):
    """An abstract model, and what fills it.

    Parameters say what they will be and where; those of the submodules in `shared` are another
    model's.
    """

    model: Model
    source: ParameterSource
    shared: Collection[str] = ()

    @property
    def devices(self) -> list[Any]:
        """Those of this process that will hold it."""
        mesh = mesh_of(self.model)
        return jax.local_devices()[:1] if mesh is None else list(mesh.local_devices)

    @property
    def device_bytes(self) -> int:
        """Of its own parameters, on each device."""
        own = named_variables(self.model, self.shared)
        return device_bytes(variable.get_value() for variable in own.values())

    def fill(self) -> Model:
        """The model, loaded; ValueError for a device that is too small, before anything is read,
        and for a value that cannot be right."""
        check_device_memory({"of weights": self.device_bytes}, self.devices)
        fill(self.model, self.source, self.shared)
        return self.model


def outline(
    model: Model,
    source: ParameterSource,
    activations: Activations,
    mesh: Mesh | None = None,
    shared: Collection[str] = (),
) -> Outline[Model]:
    """Puts quantised kernels where the source has them, and parameters on the mesh.

    activations: what quantised weights multiply with. Raises ValueError where the source or the
    mesh does not fit.
    """
    own = {path: f for path, f in source.formats.items() if path.split(".")[0] not in shared}
    quantize_structure(model, choose_activations(own, activations))
    if mesh is not None:
        check_units(model.units, mesh)
        shard(model, mesh)
    source.check(named_variables(model, shared), shared)
    return Outline(model, source, shared)
