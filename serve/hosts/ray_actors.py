"""Run the processes of an engine as Ray actors, one per host, which communicate over ZeroMQ.

Ray places them and reports those that end early.
"""

import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import chdir, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
from ray.exceptions import GetTimeoutError, RayActorError, RayError  # pyright: ignore[reportMissingImports]
from ray.util import get_node_ip_address  # pyright: ignore[reportMissingImports]
from ray.util.placement_group import PlacementGroup, placement_group  # pyright: ignore[reportMissingImports]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

from serve.options.hosts import DRIVER, HostOptions
from serve.options.ray import RayOptions
from serve.options.serve_flags import parse_serve_flags
from serve.options.serve_options import ServeOptions
from serve.pair.notices import Notify

PLACE_S = 120.0
"""Time for Ray to find room; a cluster that scales up may need more than is idle."""
FOLLOW_S = 3.0
"""Time for processes to end by themselves, which a suspended process does not."""
PASSED_ON = ("JAX_", "XLA_", "HF_", "NCCL_", "RCCL_")
"""Prefixes of variables that have the same meaning on each host."""


Run = Callable[[ServeOptions, list[str]], int]
"""A function that runs eagle3-serve with its options."""


class Host:
    """A process of the engine, as an actor on its host."""

    def where(self) -> tuple[str, int]:
        """Return the host's address and the process id."""
        return get_node_ip_address(), os.getpid()

    def serve(self, run: Run, argv: list[str], hosts: HostOptions, key: str, directory: str) -> int:
        """Follow the driver until the process ends, or return the status of a failed start.

        `argv` is eagle3-serve's. `key` has hexadecimal digits, as in a file of --hosts-key-file.
        """
        with suppress(OSError):  # The directory may exist on the driver's host only.
            os.chdir(directory)
        options, _ = parse_serve_flags(argv)
        hosts = replace(hosts, key_file=anonymous_file(key))
        return run(replace(options, ray=None, hosts=hosts), [])


@dataclass(frozen=True)
class PlacedActor:
    """A following actor; `is_here` if on the driver's host, `ended` is Ray's result of its end."""

    name: str
    pid: int
    is_local: bool
    actor: Any
    ended: ray.ObjectRef


class Actors:
    """All processes of an engine, which can be started several times.

    `argv` is eagle3-serve's. Raises ValueError or ConnectionError if Ray or room is missing.
    """

    def __init__(self, run: Run, argv: Sequence[str], options: RayOptions, notify: Notify):
        self._run, self._argv, self._options, self._notify = run, list(argv), options, notify
        self._placed: list[PlacedActor] = []
        variables = {n: v for n, v in os.environ.items() if n.startswith(PASSED_ON)}
        # Ray's workers import from the folder that is current here: the user's may hold a jax.py.
        with chdir(sys.prefix):
            ray.init(runtime_env={"env_vars": variables}, include_dashboard=False)
        self._address = get_node_ip_address()
        self._group = reserve_placement(options, self._address)

    def start(self) -> HostOptions:
        """Start the processes with a new key; return the driver's options, or raise ValueError."""
        key, options = secrets.token_hex(32), self._options
        coordinator, count = (self._address, options.port), options.num_processes
        ours = HostOptions(coordinator, options.plan_port, count, DRIVER, driven=True)
        self._placed = []
        try:
            for process in ours.followers:
                self._placed.append(self._place(replace(ours, process_id=process), key))
        except RayError as error:
            raise ValueError(f"Ray: {error}") from error
        return replace(ours, key_file=anonymous_file(key))

    def _place(self, theirs: HostOptions, key: str) -> PlacedActor:
        process = theirs.process_id
        place = PlacementGroupSchedulingStrategy(self._group, process)
        own = {"num_cpus": 1, "num_gpus": self._group.bundle_specs[process].get("GPU", 0)}
        actor = ray.remote(Host).options(scheduling_strategy=place, **own).remote()
        address, pid = ray.get(actor.where.remote(), timeout=PLACE_S)
        ended = actor.serve.remote(self._run, self._argv, theirs, key, os.getcwd())
        self._notify(f"process {process} of {theirs.num_processes}: {address}, pid {pid}")
        name = f"process {process} ({address})"
        return PlacedActor(name, pid, address == self._address, actor, ended)

    def ended(self) -> str | None:
        """Describe how a process ended, or return None while all run."""
        found, _ = ray.wait([placed.ended for placed in self._placed], timeout=0)
        return next((_end_of(p) for p in self._placed if p.ended in found), None)

    def terminate_all(self) -> None:
        """Let the processes end, then kill the rest: a suspended one would not react to Ray."""
        if not self._placed:
            return
        ended = [placed.ended for placed in self._placed]
        _, left = ray.wait(ended, num_returns=len(ended), timeout=FOLLOW_S)
        for placed in self._placed:
            if placed.ended in left and placed.is_local:
                with suppress(ProcessLookupError):
                    os.kill(placed.pid, signal.SIGKILL)
            ray.kill(placed.actor)


def reserve_placement(options: RayOptions, address: str) -> PlacementGroup:
    """Return a placement with a bundle per process, the first at this address, or ValueError."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    has_gpus = any("GPU" in node["Resources"] for node in nodes)  # AMD's or NVIDIA's.
    each: dict[str, float] = {"CPU": 1.0}
    if has_gpus:
        each["GPU"] = options.devices_each
    here = {f"node:{address}": 0.001}
    bundles = [each | here, *[each] * (options.num_processes - 1)]
    spread = "STRICT_SPREAD" if len(nodes) >= options.num_processes else "SPREAD"
    group = placement_group(bundles, strategy=spread)
    try:
        ray.get(group.ready(), timeout=PLACE_S)
    except GetTimeoutError:
        raise ValueError(
            f"Ray has no room for {options.num_processes} processes of {each} each after "
            f"{PLACE_S:g} s, the first at {address}: it has {ray.cluster_resources()}"
        ) from None
    return group


def anonymous_file(content: str) -> Path:
    """Write a file of mode 0600 that only this process can open, and that ends with it."""
    file = os.memfd_create("key")
    os.fchmod(file, 0o600)
    os.write(file, content.encode())
    return Path(f"/proc/self/fd/{file}")


def _end_of(placed: PlacedActor) -> str:
    try:
        return f"{placed.name} ended with status {ray.get(placed.ended)}"
    except RayActorError:
        return f"lost {placed.name}: Ray says that its pid {placed.pid} is dead"
    except RayError as error:  # Its method raised this.
        return f"{placed.name} failed: {error}"
