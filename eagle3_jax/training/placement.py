"""Where a training run lies on its devices: batches over `rows`, models over what serving has.

The target runs as it is served, each device on its part. The draft's update is one program over
whole arrays, whose parameters and optimizer state lie as serving would split them; XLA finds what
devices must exchange.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_jax.layers.embedding import Embedding
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
    return Mesh(np.array(found[:wanted]).reshape(shape), (ROWS, *DEVICES))


def with_whole_embedding(draft: Eagle3Draft, target: Target) -> Eagle3Draft:
    """The draft with an embedding that XLA splits: the target's own expects to run on each
    device."""
    if draft.embed_tokens is target.embed_tokens:
        table = target.embed_tokens.embedding.get_value()
        size, width = table.shape
        own = nnx.eval_shape(lambda: Embedding(size, width, rngs=nnx.Rngs(0), dtype=table.dtype))
        own.embedding.set_value(table)
        draft.embed_tokens = own
    return draft


class Placement:
    """Puts what a run has where it belongs; on one device, nothing is moved.

    Shapes in the place of arrays learn where these would lie.
    """

    def __init__(self, mesh: Mesh | None) -> None:
        self.mesh = mesh

    def check(self, draft: Eagle3Draft, rows: int) -> None:
        """Refuses a draft, or a number of rows, that devices can't have equal parts of."""
        if self.mesh is not None:
            check_units(draft.units, self.mesh)
        self.check_rows(rows)

    def check_rows(self, rows: int) -> None:
        """Refuses a number of rows that replicas can't have equal parts of."""
        if self.mesh is not None and rows % self.mesh.shape[ROWS]:
            raise ValueError(
                f"{rows} rows cannot be split evenly over {self.mesh.shape[ROWS]} replicas"
            )

    def batch(self, batch: PackedRows) -> PackedRows:
        """Each replica's rows; every process reads all of them and sends its own."""
        return jax.tree.map(partial(self._put, PartitionSpec(ROWS)), batch)

    def whole(self, tree: Any) -> Any:
        """The same on every device; what lies on the mesh already stays there."""
        return jax.tree.map(self._unless_placed, tree)

    def params(self, params: Any) -> Any:
        """Each parameter split as its logical axes say."""
        if self.mesh is None:
            return params
        return jax.tree.map(place, params, self._shardings(params))

    def initial(self, optimizer: optax.GradientTransformation, params: Any) -> TrainState:
        """The state before the first step; the optimizer's part of a parameter lies where that
        does."""
        if self.mesh is None:
            return TrainState(params, optimizer.init(params))
        init = jax.jit(optimizer.init, out_shardings=self._moments(optimizer, params))
        return TrainState(params, init(params))

    def initial_shapes(self, optimizer: optax.GradientTransformation, params: Any) -> TrainState:
        """The same of parameters that are shapes."""
        shapes = jax.eval_shape(optimizer.init, params)
        if self.mesh is None:
            return TrainState(params, shapes)
        return TrainState(params, jax.tree.map(place, shapes, self._moments(optimizer, params)))

    def _moments(self, optimizer: optax.GradientTransformation, params: Any) -> Any:
        """Where the optimizer's state lies."""
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
