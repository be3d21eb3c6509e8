"""Check before an engine is built that the host has memory enough for pages of the KV cache."""

import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import jax

from convert.device_memory import GIB

MEMINFO, OWN_GROUP = Path("/proc/meminfo"), Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
"""Limits of containers and of systemd's units, as cgroup v2 has them."""


def check_host_memory(wanted: int) -> None:
    """Refuses more bytes than this host has free, its container has left, or on GPUs the process
    may pin (the memlock limit).

    wanted: over all devices; several hosts have their devices' share each. Raises ValueError.
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
    """What a program may take without others being swapped out; None where Linux doesn't tell."""
    try:
        lines = MEMINFO.read_text().splitlines()
    except OSError:
        return None
    sizes = (line.split() for line in lines if line.startswith("MemAvailable:"))
    return next((int(kibibytes) * 1024 for _, kibibytes, _ in sizes), None)


def _left_in_groups() -> Iterator[int]:
    """Of each limit on this process: what it leaves, files that can be read again not counted."""
    with suppress(OSError):
        lines = OWN_GROUP.read_text().splitlines()
        names = (line.removeprefix("0::/") for line in lines if line.startswith("0::/"))
        for name in names:
            for group in (GROUPS / name, *(GROUPS / name).parents):
                if group.is_relative_to(GROUPS) and (left := _left_in(group)) is not None:
                    yield left


def _left_in(group: Path) -> int | None:
    """None where it has no limit."""
    with suppress(OSError, ValueError):
        limit = int((group / "memory.max").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        idle = sum(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
        return max(0, limit - int((group / "memory.current").read_text()) + idle)
    return None
