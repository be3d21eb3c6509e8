"""Where a training run lies on its devices: rows over `data`, models over what serving has.

The target runs as it is served, each device on its part. The draft's update is one program over
whole arrays, whose parameters and optimizer state lie as serving would split them; XLA finds what
devices must exchange.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_jax.mesh import DEVICES, check_units, parameter_axes, parts
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.training.loop import TrainState
from eagle3_jax.training.packing import PackedBatch

DATA = "data"


def training_mesh(
    data_parallel_size: int,
    tensor_parallel_size: int,
    *,
    enable_expert_parallel: bool = False,
    devices: Sequence[Any] | None = None,
) -> Mesh | None:
    """All devices, as replicas of as many as share a model; None for one device.

    Raises ValueError where there are too few.
    """
    found = list(jax.devices() if devices is None else devices)
    wanted = data_parallel_size * tensor_parallel_size
    if not 1 <= wanted <= len(found):
        raise ValueError(
            f"{data_parallel_size} replicas of {tensor_parallel_size} devices each need {wanted} "
            f"devices; there are {len(found)}"
        )
    if wanted == 1:
        return None
    model = (1, tensor_parallel_size) if enable_expert_parallel else (tensor_parallel_size, 1)
    shape = (data_parallel_size, *model)
    return Mesh(np.array(found[:wanted]).reshape(shape), (DATA, *DEVICES))


class Placement:
    """Puts what a run has where it belongs; on one device, nothing is moved."""

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh

    def check(self, draft: Eagle3Draft, rows: int) -> None:
        """Refuses a draft, or a number of rows, that devices can't have equal parts of."""
        if self.mesh is not None:
            check_units(draft.units, self.mesh)
        self.check_rows(rows)

    def check_rows(self, rows: int) -> None:
        """Refuses a number of rows that replicas can't have equal parts of."""
        if self.mesh is not None and rows % self.mesh.shape[DATA]:
            raise ValueError(
                f"{rows} rows cannot be split evenly over {self.mesh.shape[DATA]} replicas"
            )

    def batch(self, batch: PackedBatch) -> PackedBatch:
        """Each replica's rows; every process reads all of them and sends its own."""
        return jax.tree.map(partial(self._put, PartitionSpec(DATA)), batch)

    def whole(self, tree: Any) -> Any:
        """The same on every device; what lies on the mesh already stays there."""
        return jax.tree.map(self._unless_placed, tree)

    def params(self, params: Any) -> Any:
        """Each parameter split as its logical axes say."""
        if self.mesh is None:
            return params
        return jax.tree.map(_placed, params, self._shardings(params))

    def initial(self, optimizer: optax.GradientTransformation, params: Any) -> TrainState:
        """The state before the first step; the optimizer's part of a parameter lies where that
        does."""
        if self.mesh is None:
            return TrainState(params, optimizer.init(params))
        shardings = optax.tree.map_params(
            optimizer,
            lambda _, sharding: sharding,
            jax.eval_shape(optimizer.init, params),
            self._shardings(params),
            transform_non_params=lambda _: NamedSharding(self._mesh, PartitionSpec()),
        )
        return TrainState(params, jax.jit(optimizer.init, out_shardings=shardings)(params))

    @property
    def _mesh(self) -> Mesh:
        assert self.mesh is not None
        return self.mesh

    def _shardings(self, params: Any) -> Any:
        count = partial(parts, self._mesh)

        def sharding(variable: nnx.Variable[Any]) -> Any:
            axes = (names or None for names in parameter_axes(variable, count))
            return variable.replace(NamedSharding(self._mesh, PartitionSpec(*axes)))

        return jax.tree.map(sharding, params, is_leaf=lambda x: isinstance(x, nnx.Variable))

    def _put(self, spec: PartitionSpec, array: Any) -> Any:
        if self.mesh is None:
            return array
        return _placed(array, NamedSharding(self.mesh, spec))

    def _unless_placed(self, array: Any) -> Any:
        placed = isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding)
        return array if placed else self._put(PartitionSpec(), array)


def _placed(array: Any, sharding: NamedSharding) -> jax.Array:
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, host.__getitem__)
