"""Flags of an engine whose processes Ray places."""

import argparse
from dataclasses import dataclass
from importlib.util import find_spec

from serve.options.hosts import DEFAULT_PORT

BACKEND = "--distributed-executor-backend"
RESTART = "--restart-workers"
BACKENDS = ("mp", "uni", "ray")


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


def add_ray_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags as a group."""
    group = parser.add_argument_group("several hosts by one command")
    group.add_argument(
        BACKEND, choices=BACKENDS, help="ray: Ray starts --num-processes, one a host; mp, uni: none"
    )
    group.add_argument(
        RESTART,
        action=argparse.BooleanOptionalAction,
        default=False,
        help="Ray starts all processes again when one dies",
    )


def read_ray_options(flags: argparse.Namespace, devices: int) -> RayOptions | None:
    """Read the group, None without Ray; ValueError for conflicts. `devices` is the total."""
    if flags.distributed_executor_backend != "ray":
        if flags.restart_workers:
            raise ValueError(f"{RESTART} needs {BACKEND} ray, which starts the processes")
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
