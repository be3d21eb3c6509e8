"""Functions on some of the suite's forced host devices, as the engine's programs run them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

AXES = ("tensor", "expert")
"""Both axes of the engine's mesh: together they are all devices."""


def on_devices(
    count: int, function: Callable[..., Any], split: Sequence[int | None]
) -> jax.stages.Wrapped:
    """The function under shard_map on `count` devices: argument i split along dimension split[i].

    None: every device has it whole. Returns what each device made of it, one behind the other.
    """
    devices = np.array(jax.devices()[:count]).reshape(-1, 2 if count > 2 else 1)
    mesh = Mesh(devices, AXES)

    def copies(*arguments: Any) -> Any:
        return jax.tree.map(lambda x: x[None], function(*arguments))

    def spec(dimension: int | None) -> PartitionSpec:
        return PartitionSpec() if dimension is None else PartitionSpec(*[None] * dimension, AXES)

    return jax.jit(
        jax.shard_map(
            copies,
            mesh=mesh,
            in_specs=tuple(map(spec, split)),
            out_specs=PartitionSpec(AXES),
            check_vma=False,
        )
    )
