"""Check that the devices have enough memory before weights are loaded."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

GIB = 2**30


def device_bytes(arrays: Iterable[Any]) -> int:
    """Return the bytes that arrays, or abstract arrays, take on each of their devices."""
    total = 0
    for array in arrays:
        shape = array.sharding.shard_shape(array.shape) if array.sharding else array.shape
        total += math.prod(shape) * array.dtype.itemsize
    return total


def check_device_memory(needed: Mapping[str, int], devices: Iterable[Any]) -> None:
    """Raise ValueError if the required memory exceeds what a device has available.

    `needed` maps purposes, for the error, to bytes on each device. Devices that do not report a
    limit, such as CPUs, are not checked.
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
    """Return the unused bytes of a device, or None if it does not report its limit."""
    stats = device.memory_stats() or {}
    limit = stats.get("bytes_limit")
    return None if limit is None else limit - stats.get("bytes_in_use", 0)
