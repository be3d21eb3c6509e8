"""JAX over several processes: started, and looked over before anything is loaded."""

import os
import socket
import sys
from collections import Counter
from typing import NoReturn

import jax

from serve.hosts.meet import LOOPBACK
from serve.hosts.relay import relay
from serve.options.hosts import HostOptions, joined

START_S = 120


def start_jax(hosts: HostOptions) -> None:
    """Makes the devices of all processes known to this one; OSError for a port that is taken."""
    # It would take SIGTERM away from the server.
    jax.config.update("jax_enable_preemption_service", False)
    host, port = hosts.coordinator
    if hosts.leads:
        address, bound = joined(host, port), joined(host if host in LOOPBACK else "::", port)
        _check_free(host, port)
    else:
        # JAX aborts this process when process 0 is gone, before it could say so itself.
        address, bound = relay(hosts.coordinator), None
    try:
        jax.distributed.initialize(
            address,
            hosts.num_processes,
            hosts.process_id,
            # Slurm's would give each process one GPU.
            cluster_detection_method="deactivate",
            initialization_timeout=START_S,
            coordinator_bind_address=bound,
        )
    except RuntimeError as error:
        raise OSError(f"JAX could not join {hosts.num_processes} processes: {error}") from error


def check_devices(hosts: HostOptions, tensor_parallel_size: int) -> None:
    """Refuses processes that have not the same devices, and a mesh that leaves some out."""
    found = [Counter[str]() for _ in range(hosts.num_processes)]
    for device in jax.devices():
        found[device.process_index][device.device_kind] += 1
    listed = [" and ".join(f"{n} x {kind}" for kind, n in sorted(c.items())) for c in found]
    if len(set(listed)) > 1 or len(found[0]) != 1:
        each = "; ".join(f"process {i} has {devices}" for i, devices in enumerate(listed))
        raise ValueError(f"all processes need as many devices of one kind: {each}")
    if tensor_parallel_size != len(jax.devices()):
        raise ValueError(
            f"--tensor-parallel-size must be {len(jax.devices())}, all devices of "
            f"{hosts.num_processes} processes with {listed[0]} each; got {tensor_parallel_size}"
        )


def leave(status: int) -> NoReturn:
    """Ends the process at once. Python's own way out waits for threads, and JAX's for every process
    at a barrier, and aborts where one does not come."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def _check_free(host: str, port: int) -> None:
    """JAX's own report of a port that is taken is an abort."""
    try:
        socket.create_server((host if host in LOOPBACK else "", port)).close()
    except OSError as error:
        raise OSError(f"can't listen on {host}:{port} for JAX: {error.strerror}") from error
