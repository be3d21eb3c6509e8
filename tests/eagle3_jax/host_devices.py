"""Functions on some of the suite's forced host devices, as the engine's programs run them."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

AXIS = "tensor"


def on_devices(
    count: int, function: Callable[..., Any], split: Sequence[int | None]
) -> Callable[..., Any]:
    """The function under shard_map on `count` devices: argument i split along dimension split[i].

    None: every device has it whole. Returns NumPy arrays, in front of each one's dimensions the
    devices.
    """
    mesh = Mesh(np.array(jax.devices()[:count]), (AXIS,))

    def copies(*arguments: Any) -> Any:
        return jax.tree.map(lambda x: x[None], function(*arguments))

    specs = tuple(
        PartitionSpec(*[None] * d, AXIS) if d is not None else PartitionSpec() for d in split
    )
    run = jax.jit(
        jax.shard_map(
            copies, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(AXIS), check_vma=False
        )
    )
    return lambda *arguments: jax.tree.map(np.asarray, run(*arguments))
