"""Flags of an engine that spans several processes."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_PORT = 8476
FLAGS = {
    "coordinator_address": "--coordinator-address",
    "num_processes": "--num-processes",
    "process_id": "--process-id",
}


@dataclass(frozen=True)
class HostOptions:
    """One process of several. coordinator: host and port of JAX's coordinator, which process 0 is;
    plan_port: where it hands out calls of programs, on the same host."""

    coordinator: tuple[str, int]
    plan_port: int
    num_processes: int
    process_id: int

    @property
    def leads(self) -> bool:
        """Whether this process owns HTTP and scheduling."""
        return self.process_id == 0

    @property
    def calls_at(self) -> str:
        """The address of process 0 for calls of programs."""
        return joined(self.coordinator[0], self.plan_port)


def add_host_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the group to a command."""
    group = parser.add_argument_group("several hosts: the same command on each, but for its id")
    group.add_argument(
        FLAGS["coordinator_address"],
        metavar="HOST:PORT",
        help="of process 0, where all others can reach it",
    )
    group.add_argument(
        FLAGS["num_processes"], "--nnodes", type=int, metavar="N", help="how many processes"
    )
    group.add_argument(
        FLAGS["process_id"], "--node-rank", type=int, metavar="I", help="of this one, 0..N-1"
    )
    group.add_argument("--master-addr", metavar="HOST", help="vLLM's name of the coordinator")
    group.add_argument("--master-port", type=int, metavar="PORT", help=argparse.SUPPRESS)
    group.add_argument(
        "--plan-port", type=int, metavar="PORT", help="of process 0; default: the coordinator's + 1"
    )
    group.add_argument(
        "--distributed",
        action="store_true",
        help="what is not given comes from LeaderWorkerSet's or Slurm's environment",
    )


def read_host_options(flags: argparse.Namespace) -> HostOptions | None:
    """The group as values, None for a process that is alone; ValueError for half a group."""
    given: dict[str, Any] = {name: getattr(flags, name) for name in FLAGS}
    if flags.master_addr and not flags.coordinator_address:
        port = flags.master_port or DEFAULT_PORT
        given["coordinator_address"] = f"{flags.master_addr}:{port}"
    if flags.distributed:
        found = from_environment(os.environ)
        given = {name: found[name] if value is None else value for name, value in given.items()}
    if all(value is None for value in given.values()):
        return None
    if missing := [FLAGS[name] for name, value in given.items() if value is None]:
        raise ValueError(f"several hosts need {', '.join(missing)}, too (or --distributed)")
    count, process = given["num_processes"], given["process_id"]
    if count < 1 or not 0 <= process < count:
        raise ValueError(
            f"--process-id must be below --num-processes and not negative; got {process} of {count}"
        )
    host, port = _address(given["coordinator_address"])
    plan_port = port + 1 if flags.plan_port is None else flags.plan_port
    if not 0 < plan_port < 65536 or plan_port == port:
        raise ValueError(
            f"--plan-port must be a port other than the coordinator's; got {plan_port}"
        )
    return HostOptions((host, port), plan_port, count, process) if count > 1 else None


def from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """Coordinator's address, number of processes and this one's id as a cluster tells them.

    LeaderWorkerSet: variables of its pods. Slurm: of a job step, with JAX's own rules for address
    and port. Raises ValueError where there is neither.
    """
    if "LWS_LEADER_ADDRESS" in environment:
        return {
            "coordinator_address": f"{environment['LWS_LEADER_ADDRESS']}:{DEFAULT_PORT}",
            "num_processes": int(environment["LWS_GROUP_SIZE"]),
            "process_id": int(environment["LWS_WORKER_INDEX"]),
        }
    if "SLURM_PROCID" in environment:
        from jax._src.clusters import SlurmCluster

        return {
            "coordinator_address": SlurmCluster.get_coordinator_address(None, None),
            "num_processes": SlurmCluster.get_process_count(),
            "process_id": SlurmCluster.get_process_id(),
        }
    raise ValueError(
        "--distributed finds neither LWS_LEADER_ADDRESS (LeaderWorkerSet) nor SLURM_PROCID (srun) "
        f"in the environment; give {', '.join(FLAGS.values())}"
    )


def joined(host: str, port: int) -> str:
    """An address as URLs have it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 65535:
        raise ValueError(f"--coordinator-address must be HOST:PORT, with a port; got {text}")
    return host.strip("[]"), int(port)
