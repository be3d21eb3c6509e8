"""Check that the host has enough memory for KV pages before an engine is built."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jax

from convert.device_memory import GIB

MEMINFO, OWN_GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
"""Memory limits of containers and systemd units, as in cgroup v2."""


def check_host_memory(wanted: int) -> None:
    """Raise ValueError for more bytes than this host, container or process may use.

    The limits are free memory, the cgroup's limit and, on GPUs, the memlock limit for pinned
    memory. `wanted` is for all devices; each host checks the part of its own devices.
    """
    own = wanted * len(jax.local_devices()) // len(jax.devices())
    free = _free_bytes()
    if free is not None and own > free:
        raise ValueError(
            f"--kv-offloading-size wants {own / GIB:.1f} GiB of this host's memory, of which "
            f"{free / GIB:.1f} GiB are free: give less"
        )
    left = min(_left_in_groups(), default=None)
    if left is not None and own > left:
        raise ValueError(
            f"--kv-offloading-size wants {own / GIB:.1f} GiB, the memory limit of this container "
            f"or unit leaves {left / GIB:.1f} GiB: raise it (docker --memory, Kubernetes "
            "limits.memory, systemd MemoryMax=) or give less"
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if jax.default_backend() != "cpu" and limit != resource.RLIM_INFINITY and own > limit:
        raise ValueError(
            f"--kv-offloading-size pins {own / GIB:.1f} GiB, this process may pin "
            f"{limit / GIB:.1f} GiB: raise it (ulimit -l unlimited; LimitMEMLOCK= of systemd, "
            "--ulimit memlock=-1 of docker) or give less"
        )


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
