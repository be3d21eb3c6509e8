"""Placement of a training run on its devices: batches over `rows`, models as in serving.

The target runs as it is served, each device on its part. The draft's update is one program over
whole arrays. Its parameters and optimizer state are sharded as in serving, and XLA inserts the
collectives.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_jax.layers.linear import Embedding
from eagle3_jax.mesh import DEVICES, check_units, parameter_axes, parts, place
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.loop import TrainState

ROWS = "rows"
PackedRows = TypeVar("PackedRows")
"""A pytree of arrays whose first dimension is rows."""


def training_mesh(
    data_parallel_size: int,
    tensor_parallel_size: int,
    *,
    enable_expert_parallel: bool = False,
    devices: Sequence[Any] | None = None,
) -> Mesh | None:
    """Make a mesh of replicas and the devices that share a model; None for one device.

    Raises ValueError if there are too few devices.
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
    return Mesh(np.array(found[:wanted]).reshape(shape), (ROWS, *DEVICES))


def with_whole_embedding(draft: Eagle3Draft, target: Target) -> Eagle3Draft:
    """Give the draft an embedding that XLA splits; the target's own must run per device."""
    if draft.embed_tokens is target.embed_tokens:
        table = target.embed_tokens.embedding.get_value()
        size, width = table.shape
        own = nnx.eval_shape(lambda: Embedding(size, width, rngs=nnx.Rngs(0), dtype=table.dtype))
        own.embedding.set_value(table)
        draft.embed_tokens = own
    return draft


class Placement:
    """Puts the arrays of a run on the mesh, or leaves them on a single device.

    Shapes in place of arrays get shardings.
    """

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh

    def check(self, draft: Eagle3Draft, rows: int) -> None:
        """Raise ValueError if devices cannot have equal parts of a draft or of the rows."""
        if self.mesh is not None:
            check_units(draft.units, self.mesh)
        self.check_rows(rows)

    def check_rows(self, rows: int) -> None:
        """Raise ValueError if replicas cannot have equal parts of the rows."""
        if self.mesh is not None and rows % self.mesh.shape[ROWS]:
            raise ValueError(
                f"{rows} rows cannot be split evenly over {self.mesh.shape[ROWS]} replicas"
            )

    def batch(self, batch: PackedRows) -> PackedRows:
        """Split a batch's rows over replicas; every process reads all rows and sends its own."""
        return jax.tree.map(partial(self._put, PartitionSpec(ROWS)), batch)

    def whole(self, tree: Any) -> Any:
        """Replicate a pytree on all devices; arrays that are on the mesh already stay unchanged."""
        return jax.tree.map(self._unless_placed, tree)

    def params(self, params: Any) -> Any:
        if self.mesh is None:
            return params
        return jax.tree.map(place, params, self._shardings(params))

    def initial(self, optimizer: optax.GradientTransformation, params: Any) -> TrainState:
        """Make the state before the first step; optimizer state is sharded like its parameter."""
        if self.mesh is None:
            return TrainState(params, optimizer.init(params))
        init = jax.jit(optimizer.init, out_shardings=self._moments(optimizer, params))
        return TrainState(params, init(params))

    def initial_shapes(self, optimizer: optax.GradientTransformation, params: Any) -> TrainState:
        """Make the initial state's shapes from parameters that are shapes."""
        shapes = jax.eval_shape(optimizer.init, params)
        if self.mesh is None:
            return TrainState(params, shapes)
        return TrainState(params, jax.tree.map(place, shapes, self._moments(optimizer, params)))

    def _moments(self, optimizer: optax.GradientTransformation, params: Any) -> Any:
        return optax.tree.map_params(
            optimizer,
            lambda _, sharding: sharding,
            jax.eval_shape(optimizer.init, params),
            self._shardings(params),
            transform_non_params=lambda _: NamedSharding(self._mesh, PartitionSpec()),
        )

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
        return place(array, NamedSharding(self.mesh, spec))

    def _unless_placed(self, array: Any) -> Any:
        placed = isinstance(getattr(array, "sharding", None), NamedSharding)
        return array if placed else self._put(PartitionSpec(), array)
