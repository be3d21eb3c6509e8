"""Flags of an engine whose processes Ray places."""

import argparse
import ssl
from dataclasses import dataclass
from importlib.util import find_spec
from urllib.request import urlopen

from serve.options.hosts import DEFAULT_PORT, FLAGS, joined

BACKEND = "--distributed-executor-backend"
RESTART = "--restart-workers"
BACKENDS = ("mp", "uni", "ray")
PROBE_S = 1.0


@dataclass(frozen=True)
class RayOptions:
    """What Ray is to start. devices_each: of a process; port: of JAX's coordinator on the host of
    process 0; url: of the engine's health, as this host reaches it; restart: whether an engine that
    was ready comes back by itself."""

    num_processes: int
    devices_each: int
    port: int
    plan_port: int
    url: str
    restart: bool

    def flags_of(self, process: int, address: str) -> list[str]:
        """What tells a process from the others; address: of the host of process 0."""
        return [
            *(BACKEND, "mp", f"--no-{RESTART.removeprefix('--')}"),
            *(FLAGS["coordinator_address"], joined(address, self.port)),
            *("--plan-port", f"{self.plan_port}"),
            *(FLAGS["num_processes"], f"{self.num_processes}"),
            *(FLAGS["process_id"], f"{process}"),
        ]

    def is_ready(self) -> bool:
        """Whether the engine answers requests now."""
        unchecked = ssl.create_default_context()  # Only what is ours is asked, for a status.
        unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE
        try:
            with urlopen(self.url, timeout=PROBE_S, context=unchecked) as answer:
                return answer.status == 200
        except OSError:
            return False


def add_ray_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the group to a command."""
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
    """None where Ray has no part in it. devices: of all processes. Raises ValueError for flags that
    don't go together."""
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
    if flags.port == 0:
        raise ValueError(f"{BACKEND} ray needs a --port that stays the same; got 0")
    for package, extra in (("ray", "ray"), ("zmq", "hosts")):
        if find_spec(package) is None:
            raise ValueError(f"{BACKEND} ray needs the extra: pip install 'eagle3-jax[{extra}]'")
    plan_port = port + 1 if flags.plan_port is None else flags.plan_port
    return RayOptions(count, devices // count, port, plan_port, _url(flags), flags.restart_workers)


def _url(flags: argparse.Namespace) -> str:
    scheme = "https" if flags.ssl_certfile else "http"
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(str(flags.host), str(flags.host))
    return f"{scheme}://{joined(host, flags.port)}/health"
