"""Processes that JAX joins: its service in a process of its own, and Slurm's variables.

The one module that needs JAX's private side for that. A process of JAX aborts in the same
millisecond in which its connection to the service breaks, before it could say who is gone. JAX runs
the service in process 0, so that the death of that one would end all others so. Here a child of
process 0 runs it, which outlives its parent for as long as the others need to end by themselves.
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
    """Makes the devices of all processes known to this one.

    bind: where process 0's service listens, None in the others; it must be free, since the service
    shares a port with another one of its kind. Raises OSError where somebody else has the port, or
    the others don't come.
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
    """Coordinator's address, number of processes and this one's id in a step of Slurm, by JAX's
    rules for address and port."""
    return (
        SlurmCluster.get_coordinator_address(None, None),
        SlurmCluster.get_process_count(),
        SlurmCluster.get_process_id(),
    )


def _start_service(bind: str, num_processes: int) -> None:
    """Returns once it listens. Its standard input is open as long as this process lives."""
    command = [sys.executable, "-m", "eagle3_jax.coordination", bind, str(num_processes)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    service = subprocess.Popen(  # Ctrl-C is its parent's affair.
        command, stdin=pipe, stdout=pipe, stderr=nowhere, start_new_session=True
    )
    assert service.stdout is not None
    if not service.stdout.readline():
        raise OSError(f"can't listen on {bind} for JAX: the port is taken, or not ours to have")


@contextmanager
def _service_elsewhere() -> Iterator[None]:
    """For a block JAX starts no service."""
    start = _jax.get_distributed_runtime_service
    _jax.get_distributed_runtime_service = lambda *_, **__: SimpleNamespace(shutdown=list)
    try:
        yield
    finally:
        _jax.get_distributed_runtime_service = start


def _serve(bind: str, num_processes: int) -> None:
    """Until the parent has ended, and then for as long as others may need to notice."""
    service = _jax.get_distributed_runtime_service(bind, num_processes)
    print("listening", flush=True)
    sys.stdin.read()
    time.sleep(OUTLIVES_S)
    service.shutdown()


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]))
