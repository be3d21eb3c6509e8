"""KV pages that fit in a share of a device's memory."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import jax

from convert.device_memory import GIB, device_bytes
from eagle3_jax.engine import EngineConfig
from serve.options.memory import MemoryShare

PROGRAM_BYTES = 2 * GIB
"""What programs need while they run: `make rocm-check` holds full-size rounds below it."""


def share_bytes(memory: MemoryShare, allocator_share: float, devices: Iterable[Any]) -> int | None:
    """Bytes on each device for weights, requests and KV cache; None where a device does not tell
    what it has, as CPUs. allocator_share: of its memory that the limit is."""
    found = [(device.memory_stats() or {}).get("bytes_limit") for device in devices]
    limits = [limit for limit in found if limit is not None]
    if not limits or len(limits) < len(found):
        return None
    usable = int(min(limits) * min(1.0, memory.share / allocator_share))
    return usable if memory.programs_on_top else usable - PROGRAM_BYTES


def fitting_pages(
    config: EngineConfig, shapes: Callable[[EngineConfig], Any], weights: int, usable: int
) -> int:
    """Pages in every pool, scratch page included, so that all of them, the requests' state and
    `weights` take at most `usable` bytes of a device; at least those of one sequence.

    shapes: the state of an engine, as shapes.
    """
    least = config.pages_per_seq + 1

    def state_bytes(num_pages: int) -> int:
        return device_bytes(jax.tree.leaves(shapes(replace(config, num_pages=num_pages))))

    smallest = state_bytes(least)
    a_page = state_bytes(least + 1) - smallest
    return least + max(0, (usable - weights - smallest) // a_page)
