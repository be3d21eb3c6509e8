"""Start JAX over several processes, and check their devices before anything is loaded."""

import os
import sys
from collections import Counter
from typing import NoReturn

import jax

from serve.options.hosts import HostOptions, joined


def start_jax(hosts: HostOptions) -> None:
    """Connect this process to the devices of all processes; OSError for an occupied port."""
    from eagle3_jax.coordination import join  # JAX's private interface, imported on demand.
    from serve.hosts.messages import await_free  # Needs the extra hosts.

    host, port = hosts.coordinator
    is_first = hosts.process_id == 0
    bind = joined(host if hosts.is_local else "::", port) if is_first else None
    if bind:  # The service of a previous engine may still run.
        await_free(bind)
    join(joined(host, port), bind, hosts.num_processes, hosts.process_id)


def check_devices(hosts: HostOptions, devices: int) -> None:
    """Raise ValueError unless all processes have equal devices and the mesh uses all of them."""
    found = [Counter[str]() for _ in range(hosts.num_processes)]
    for device in jax.devices():
        found[device.process_index][device.device_kind] += 1
    listed = [" and ".join(f"{n} x {kind}" for kind, n in sorted(c.items())) for c in found]
    if len(set(listed)) > 1 or len(found[0]) != 1:
        each = "; ".join(f"process {i} has {those}" for i, those in enumerate(listed))
        raise ValueError(f"all processes need as many devices of one kind: {each}")
    if devices != len(jax.devices()):
        raise ValueError(
            "--tensor-parallel-size, times --data-parallel-size, must be "
            f"{len(jax.devices())}, all devices of {hosts.num_processes} processes with "
            f"{listed[0]} each; got {devices}"
        )


def exit_now(status: int) -> NoReturn:
    """End the process at once.

    A regular exit waits for threads, and for JAX's barrier, which aborts if a process is missing.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
