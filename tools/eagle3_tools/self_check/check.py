"""Check of one recorded call on several devices, each with the same arrays."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from eagle3_tools.self_check.alone import stand_alone
from eagle3_tools.self_check.calls import Call
from eagle3_tools.self_check.errors import Error, worst_error
from pallas_kernels import gpu

AXIS = "device"


@dataclass(frozen=True)
class CheckedCall:
    """Result of a check on one device (JAX's index): the worst error and its tolerance. Both are
    None if nothing ran; `refused` says why."""

    operation: str
    shapes: str
    device: int
    error: float | None = None
    tolerance: float | None = None
    refused: str = ""

    @property
    def wrong(self) -> bool:
        """True if the kernel ran and its result differs."""
        return self.error is not None and self.error > (self.tolerance or 0)


def check_call(call: Call, devices: Sequence[int], most_bytes: int) -> list[CheckedCall]:
    """Compile kernel and reference once and run both on each of the JAX devices with these indices.

    A call with more than `most_bytes` of arguments is refused. Errors of a device are raised.
    """
    refused = call.kernel if isinstance(call.kernel, str) else ""
    if call.argument_bytes > most_bytes:
        size, most = call.argument_bytes >> 20, most_bytes >> 20
        refused = refused or f"not tried: {size} MiB of arguments, more than {most} MiB"
    about = [(call.operation, call.shapes, device) for device in devices]
    if refused:
        return [CheckedCall(*one, refused=refused) for one in about]
    errors = _errors(call, [jax.devices()[device] for device in devices])
    return [CheckedCall(*one, *error) for one, error in zip(about, errors, strict=True)]


def _errors(call: Call, devices: Sequence[Any]) -> Iterator[Error]:
    with jax.default_device(devices[0]):
        kernel, contract, arrays = stand_alone(call)
    mesh = Mesh(np.array(devices), (AXIS,))
    arrays = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec()))
    got = _on_each(kernel, mesh)(*arrays)
    with jax.default_matmul_precision("highest"):
        wanted = _on_each(contract, mesh)(*arrays)
    got, wanted = jax.device_get((got, wanted))
    for place in range(len(devices)):
        yield worst_error(*jax.tree.map(lambda x, place=place: x[place], (got, wanted)))


def _on_each(function: Callable[..., Any], mesh: Mesh) -> Callable[..., Any]:
    """Compile a function to run on every device; results get a leading axis of devices."""

    def stacked(*arrays: Any) -> Any:
        return jax.tree.map(lambda x: x[None], function(*arrays))

    options = gpu.CPU_OPTIONS if gpu.interpreted() else gpu.compiler_options()
    whole, split = PartitionSpec(), PartitionSpec(AXIS)
    mapped = jax.shard_map(stacked, mesh=mesh, in_specs=whole, out_specs=split, check_vma=False)
    return jax.jit(mapped, compiler_options=options)
