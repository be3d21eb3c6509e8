"""Joining of processes by JAX: its service in a separate process, and Slurm's variables.

Only this module uses JAX's private API for that. A JAX process aborts as soon as its connection to
the service breaks, before it can report the lost process. JAX runs the service in process 0, whose
death would therefore abort all others. Here a child of process 0 runs the service and outlives its
parent until the others have ended by themselves.
"""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import jax
from jax._src.clusters import SlurmCluster
from jax._src.lib import _jax  # pyright: ignore[reportPrivateImportUsage]

START_S = 120
OUTLIVES_S = 12.0
"""Longer than the others need to end when process 0 stops."""


def join(address: str, bind: str | None, num_processes: int, process_id: int) -> None:
    """Make the devices of all processes known to this one.

    `bind` is the address of process 0's service, None in other processes. It must be free, because
    the service would share its port with another such service. Raises OSError if the port is taken
    or a process does not join.
    """
    # It would take SIGTERM away from the server.
    jax.config.update("jax_enable_preemption_service", False)
    if bind is not None:
        _start_service(bind, num_processes)
    try:
        with _service_elsewhere():
            jax.distributed.initialize(
                address,
                num_processes,
                process_id,
                # Slurm's would give each process one GPU.
                cluster_detection_method="deactivate",
                initialization_timeout=START_S,
            )
    except RuntimeError as error:
        raise OSError(f"JAX could not join {num_processes} processes: {error}") from error


def slurm_step() -> tuple[str, int, int]:
    """Return coordinator address, process count and process id of a Slurm step, by JAX's rules."""
    return (
        SlurmCluster.get_coordinator_address(None, None),
        SlurmCluster.get_process_count(),
        SlurmCluster.get_process_id(),
    )


def _start_service(bind: str, num_processes: int) -> None:
    """Start the service and wait until it listens. Its stdin closes when this process ends."""
    # -P: the service imports JAX, never a jax.py of the current folder.
    command = [sys.executable, "-P", __file__, bind, str(num_processes)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    service = subprocess.Popen(  # Ctrl-C is for the parent.
        command, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True
    )
    assert service.stdout is not None
    if not service.stdout.readline():
        raise OSError(f"can't listen on {bind} for JAX: the port is taken, or not ours to have")


@contextmanager
def _service_elsewhere() -> Iterator[None]:
    """Prevent JAX from starting a service within the block."""
    start = _jax.get_distributed_runtime_service
    _jax.get_distributed_runtime_service = lambda *_, **__: SimpleNamespace(shutdown=list)
    try:
        yield
    finally:
        _jax.get_distributed_runtime_service = start


def _serve(bind: str, num_processes: int) -> None:
    """Serve until the parent has ended and the others have had time to notice."""
    service = _jax.get_distributed_runtime_service(bind, num_processes)
    print("listening", flush=True)
    sys.stdin.read()
    time.sleep(OUTLIVES_S)
    service.shutdown()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
