"""Check before an engine is built that the host has memory enough for pages of the KV cache."""

import resource
from pathlib import Path

import jax

from convert.device_memory import GIB

MEMINFO = Path("/proc/meminfo")


def check_host_memory(wanted: int) -> None:
    """Refuses more bytes than this host has free, or on GPUs may pin (the memlock limit).

    wanted: over all devices; several hosts have their devices' share each. Raises ValueError.
    """
    own = wanted * len(jax.local_devices()) // len(jax.devices())
    free = _free_bytes()
    if free is not None and own > free:
        raise ValueError(
            f"--kv-offloading-size wants {own / GIB:.1f} GiB of this host's memory, of which "
            f"{free / GIB:.1f} GiB are free: give less"
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
