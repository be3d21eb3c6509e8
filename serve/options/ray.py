"""Options of an engine whose processes Ray places."""

import argparse
from dataclasses import dataclass
from importlib.util import find_spec

from convert.command_line.options import option
from serve.options.hosts import DEFAULT_PORT

BACKEND = "--distributed-executor-backend"


@dataclass(frozen=True)
class RayFlags:
    """Options of one command for several hosts."""

    distributed_executor_backend: str | None = option(
        BACKEND,
        "ray: Ray starts --num-processes processes, one a host; mp, uni: no Ray",
        choices=("mp", "uni", "ray"),
    )
    restart_workers: bool = option(
        "--restart-workers",
        "Ray starts all processes again when one dies",
        default=False,
        action=argparse.BooleanOptionalAction,
    )


@dataclass(frozen=True)
class RayOptions:
    """The processes that Ray starts, with `devices_each`; `port` is that of JAX's coordinator.

    With `restart`, all processes start again if one dies after the engine was ready.
    """

    num_processes: int
    devices_each: int
    port: int
    plan_port: int
    restart: bool


def read_ray_options(flags: argparse.Namespace, devices: int) -> RayOptions | None:
    """Read the table, None without Ray; ValueError for conflicts. `devices` is the total."""
    if flags.distributed_executor_backend != "ray":
        if flags.restart_workers:
            raise ValueError(f"--restart-workers needs {BACKEND} ray, which starts the processes")
        return None
    count, port = flags.num_processes, flags.master_port or DEFAULT_PORT
    told = (flags.process_id, flags.coordinator_address, flags.master_addr, flags.hosts_key_file)
    if flags.distributed or any(value is not None for value in told):
        raise ValueError(
            f"{BACKEND} ray places all processes and makes their key: leave out "
            "--coordinator-address, --process-id, --master-addr, --hosts-key-file, --distributed"
        )
    if count is None or count < 2 or devices % count:
        raise ValueError(
            f"{BACKEND} ray needs --num-processes, at least 2 and a divisor of the {devices} "
            f"devices of --tensor-parallel-size; got {count}"
        )
    for package, extra in (("ray", "ray"), ("zmq", "hosts")):
        if find_spec(package) is None:
            raise ValueError(f"{BACKEND} ray needs the extra: pip install 'eagle3-jax[{extra}]'")
    plan_port = port + 1 if flags.plan_port is None else flags.plan_port
    return RayOptions(count, devices // count, port, plan_port, flags.restart_workers)
