"""Compute the KV pages that fit into a fraction of a device's memory."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax

from convert.device_memory import GIB, device_bytes
from eagle3_jax.engine import EngineConfig
from serve.options.memory import MemoryShare

PROGRAM_BYTES = 2 * GIB
"""Memory that programs need while they run; `make rocm-check` keeps full-size rounds below it."""


def share_bytes(memory: MemoryShare, allocator_share: float, devices: Iterable[Any]) -> int | None:
    """Return bytes per device for all but programs; None if a device has no limit.

    `allocator_share` is the fraction of a device's memory that its limit represents.
    """
    found = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    limits = [limit for limit in found if limit is not None]
    if not limits or len(limits) < len(found):
        return None
    usable = int(min(limits) * min(1.0, memory.share / allocator_share))
    return usable if memory.programs_on_top else usable - PROGRAM_BYTES


def fitting_pages(
    config: EngineConfig, shapes: Callable[[EngineConfig], Any], weights: int, usable: int
) -> int:
    """Return the pages of every pool, scratch page included, that fit into `usable` bytes.

    Pages, request state and `weights` share these bytes of a device. The result is at least the
    pages of one sequence. `shapes` returns an engine's abstract state.
    """
    least = config.pages_per_seq + 1

    def state_bytes(num_pages: int) -> int:
        return device_bytes(jax.tree.leaves(shapes(replace(config, num_pages=num_pages))))

    smallest = state_bytes(least)
    a_page = state_bytes(least + 1) - smallest
    return least + max(0, (usable - weights - smallest) // a_page)
