"""Does it fit: what devices will hold against what they have, before anything is loaded."""

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from flax import nnx

from convert.fill import named_variables

GIB = 2**30


def device_bytes(model: nnx.Module, skip: Collection[str] = ()) -> int:
    """Bytes of a model's parameters on each of its devices; they may be shapes.

    skip: submodules that are not counted.
    """
    total = 0
    for variable in named_variables(model, skip).values():
        value = variable.get_value()
        shape = value.sharding.shard_shape(value.shape) if value.sharding else value.shape
        total += math.prod(shape) * value.dtype.itemsize
    return total


def check_device_memory(needed: Mapping[str, int], devices: Iterable[Any]) -> None:
    """Refuses what does not fit.

    needed: what it is -> bytes on each device. Devices that don't tell their limit, as CPUs, are
    not asked. Raises ValueError with what is needed, what is there and what may help.
    """
    for device in devices:
        available = _available(device)
        if available is None or (total := sum(needed.values())) <= available:
            continue
        parts = ", ".join(f"{nbytes / GIB:.2f} GiB {what}" for what, nbytes in needed.items())
        raise ValueError(
            f"device {device} is too small: {total / GIB:.2f} GiB needed ({parts}), "
            f"{available / GIB:.2f} GiB available. What may help: more devices, a checkpoint in "
            "fewer bits, fewer or shorter sequences at a time, a larger "
            "XLA_PYTHON_CLIENT_MEM_FRACTION (JAX takes 0.75 of a GPU's memory by default)"
        )


def _available(device: Any) -> int | None:
    """Bytes that are not in use, None where the device doesn't tell."""
    stats = device.memory_stats() or {}
    limit = stats.get("bytes_limit")
    return None if limit is None else limit - stats.get("bytes_in_use", 0)
