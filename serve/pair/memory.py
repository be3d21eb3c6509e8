"""Check the host's memory for KV pages, and fit the pages into a fraction of a device's."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax

from convert.device_memory import GIB, device_bytes
from eagle3_jax.engine import EngineConfig
from serve.options.memory import MemoryShare

MEMINFO, OWN_GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
"""Memory limits of containers and systemd units, as in cgroup v2."""
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


def check_host_memory(wanted: int) -> None:
    """Raise ValueError for more bytes than this host or container may use.

    The limits are free memory and the cgroup's limit. Pinned memory does not count against
    RLIMIT_MEMLOCK: ROCr maps anonymous pages, which amdgpu finds by hmm_range_fault
    (libhsakmt/src/fmm.c, amdgpu_hmm.c), and NVIDIA's driver pins pages without asking for the
    limit (os-mlock.c). `wanted` is for all devices; each host checks the part of its own devices.
    """
    own = wanted * len(jax.local_devices()) // len(jax.devices())
    free = _free_bytes()
    if free is not None and own > free:
        raise ValueError(
            f"--kv-offloading-size wants {_size(own)} of this host's memory, of which "
            f"{_size(free)} are free: give less"
        )
    left = min(_left_in_groups(), default=None)
    if left is not None and own > left:
        raise ValueError(
            f"--kv-offloading-size wants {_size(own)}, the memory limit of this container "
            f"or unit leaves {_size(left)}: raise it (docker --memory, Kubernetes "
            "limits.memory, systemd MemoryMax=) or give less"
        )


def _size(nbytes: int) -> str:
    """Format bytes: `10.5 GiB`, `8.0 MiB`, `0.5 MiB`."""
    return f"{nbytes / GIB:.1f} GiB" if nbytes >= GIB else f"{nbytes / (1 << 20):.1f} MiB"


def _free_bytes() -> int | None:
    """Return the memory available without swapping, or None if Linux does not report it."""
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(kibibytes) * 1024 for _, kibibytes, _ in sizes), None)


def _left_in_groups() -> Iterator[int]:
    """Yield the rest of each cgroup limit on this process, not counting reclaimable file cache."""
    with suppress(OSError):
        lines = OWN_GROUP.read_text().splitlines()
        names = (line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        for name in names:
            for group in (GROUPS / name, *(GROUPS / name).parents):
                if group.is_relative_to(GROUPS) and (left := _left_in(group)) is not None:
                    yield left


def _left_in(group: Path) -> int | None:
    """Return the rest of a group's limit, or None if it has none."""
    with suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        idle = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return max(0, limit - int((group / "memory.current").read_text()) + idle)
    return None
