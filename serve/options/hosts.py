"""Options of an engine that spans several processes."""

import argparse
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from convert.command_line.options import flags_of, option

DEFAULT_PORT, LAST_PORT = 8476, 65535
KEY_FLAG = "--hosts-key-file"
KEY_BYTES = 32
MAKE_KEY = "(umask 077; openssl rand -hex 32 > FILE)"
DRIVER = -1
"""Id of a leading process without devices, where all numbered processes follow."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class HostFlags:
    """Options of several hosts: the same command runs on each, but for its id."""

    coordinator_address: str | None = option(
        "--coordinator-address HOST:PORT",
        "address of process 0, which every other process must reach",
    )
    num_processes: int | None = option("--num-processes, --nnodes N", "number of processes", int)
    process_id: int | None = option(
        "--process-id, --node-rank I", "number of this process, 0..N-1", int
    )
    master_addr: str | None = option(
        "--master-addr HOST", "vLLM's name for the host of --coordinator-address"
    )
    master_port: int | None = option("--master-port PORT", None, int)
    plan_port: int | None = option(
        "--plan-port PORT", "port of process 0 for program calls; default: coordinator + 1", int
    )
    hosts_key_file: Path | None = option(
        f"{KEY_FLAG} FILE", f"the key of all processes, mode 0600; make one: {MAKE_KEY}", Path
    )
    distributed: bool = option(
        "--distributed", "read other settings from LeaderWorkerSet's or Slurm's environment"
    )


FLAGS = {
    name: flag
    for name, flag in flags_of(HostFlags).items()
    if name in ("coordinator_address", "num_processes", "process_id")
}
"""Options that a cluster's environment may give."""


@dataclass(frozen=True)
class HostOptions:
    """One of several processes of an engine.

    Process 0 is JAX's `coordinator` (host, port); the same host distributes program calls at
    `plan_port`. Peers must have the key in `key_file`; None admits any process of this machine. If
    `driven`, a process without devices leads, DRIVER, and process 0 follows.
    """

    coordinator: tuple[str, int]
    plan_port: int
    num_processes: int
    process_id: int
    key_file: Path | None = None
    driven: bool = False

    @property
    def is_local(self) -> bool:
        """True if all processes run on one machine."""
        return self.coordinator[0] in LOOPBACK

    @property
    def leads(self) -> bool:
        """True if this process owns HTTP and scheduling."""
        return self.process_id == (DRIVER if self.driven else 0)

    @property
    def leader(self) -> str:
        """The leader's name in messages."""
        return "the command" if self.driven else "process 0"

    @property
    def followers(self) -> range:
        """Ids of all processes except the leader."""
        return range(0 if self.driven else 1, self.num_processes)

    @property
    def calls_at(self) -> str:
        """Address for program calls."""
        return joined(self.coordinator[0], self.plan_port)


def read_host_options(flags: argparse.Namespace) -> HostOptions | None:
    """Read the table, None for a single process; ValueError if flags are missing."""
    given: dict[str, Any] = {name: getattr(flags, name) for name in FLAGS}
    if flags.master_addr and not flags.coordinator_address:
        port = flags.master_port or DEFAULT_PORT
        given["coordinator_address"] = f"{flags.master_addr}:{port}"
    if flags.distributed:
        found = from_environment(os.environ)
        given = {name: found[name] if value is None else value for name, value in given.items()}
    if all(value is None for value in given.values()):
        _check_alone(flags)
        return None
    if missing := [FLAGS[name] for name, value in given.items() if value is None]:
        raise ValueError(f"several hosts need {', '.join(missing)}, too (or --distributed)")
    count, process = given["num_processes"], given["process_id"]
    if count < 1 or not 0 <= process < count:
        raise ValueError(
            f"--process-id must be below --num-processes and not negative; got {process} of {count}"
        )
    host, port = _address(given["coordinator_address"])
    plan_port = _beside(port) if flags.plan_port is None else flags.plan_port
    if not 0 < plan_port <= LAST_PORT or plan_port == port:
        raise ValueError(
            f"--plan-port must be a port other than the coordinator's; got {plan_port}"
        )
    if count == 1:
        return None
    found = HostOptions((host, port), plan_port, count, process, flags.hosts_key_file)
    _check(found)
    return found


def _check_alone(flags: argparse.Namespace) -> None:
    """Raise ValueError for a flag that only several hosts have."""
    for flag in (KEY_FLAG, "--plan-port", "--master-port"):
        if getattr(flags, flag[2:].replace("-", "_")) is not None:
            needed = ", ".join(FLAGS.values())
            raise ValueError(f"{flag} belongs to several hosts: give {needed} too")


def _check(hosts: HostOptions) -> None:
    """Raise ValueError if the processes may not or cannot communicate."""
    if find_spec("zmq") is None:
        raise ValueError("several hosts need the extra hosts: pip install 'eagle3-jax[hosts]'")
    if hosts.key_file is not None:
        read_key(hosts.key_file)
    elif not hosts.is_local:
        raise ValueError(
            f"several hosts need {KEY_FLAG} FILE, the same key on each: without one anybody "
            f"who reaches {hosts.calls_at} could send calls; make one: {MAKE_KEY}"
        )


def read_key(path: Path, flag: str = KEY_FLAG) -> bytes:
    """Read a 32-byte key; ValueError, naming the flag, if it is invalid or others can read it."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise ValueError(f"{flag}: others can read {path} (mode {mode:04o}); chmod 600 {path}")
        text = path.read_text(encoding="ascii", errors="replace")
    except OSError as error:
        raise ValueError(f"{flag}: can't read {path}: {error.strerror}") from error
    try:
        key = bytes.fromhex(text)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(
            f"{flag}: {path} must hold {KEY_BYTES} bytes as hexadecimal digits; make one: "
            f"{MAKE_KEY}, and copy it to each host"
        )
    return key


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return coordinator address, process count and process id from a cluster's environment.

    LeaderWorkerSet sets variables in its pods. For a Slurm job step, JAX's own rules give address
    and port. Raises ValueError if neither is present.
    """
    if "LWS_LEADER_ADDRESS" in environment:
        return {
            "coordinator_address": f"{environment['LWS_LEADER_ADDRESS']}:{DEFAULT_PORT}",
            "num_processes": int(environment["LWS_GROUP_SIZE"]),
            "process_id": int(environment["LWS_WORKER_INDEX"]),
        }
    if "SLURM_PROCID" in environment:
        from eagle3_jax.coordination import slurm_step

        return dict(zip(FLAGS, slurm_step(), strict=True))
    raise ValueError(
        "--distributed finds neither LWS_LEADER_ADDRESS (LeaderWorkerSet) nor SLURM_PROCID (srun) "
        f"in the environment; give {', '.join(FLAGS.values())}"
    )


def joined(host: str, port: int) -> str:
    """Join host and port as in URLs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) <= LAST_PORT:
        raise ValueError(f"--coordinator-address must be HOST:PORT, with a port; got {text}")
    return host.strip("[]"), int(port)


def _beside(port: int) -> int:
    """Return the next port, but 65534 after 65535, which JAX gives one Slurm job in 4,096."""
    return port + 1 if port < LAST_PORT else port - 1
