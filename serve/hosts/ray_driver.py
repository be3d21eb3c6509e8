"""One command for several hosts: Ray places a process on each, says which one died, and starts all
of them again. What the processes tell each other goes over ZeroMQ as without Ray."""

import os
import secrets
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

import ray  # pyright: ignore[reportMissingImports]
from ray.exceptions import GetTimeoutError, RayActorError, RayError  # pyright: ignore[reportMissingImports]
from ray.util import get_node_ip_address  # pyright: ignore[reportMissingImports]
from ray.util.placement_group import PlacementGroup, placement_group  # pyright: ignore[reportMissingImports]
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy  # pyright: ignore[reportMissingImports]

from serve.hosts.ray_actors import Host, LastWords, Main, Start
from serve.options.executor.ray import RayOptions
from serve.pair.notices import Say

LOOK_S = 0.25
PLACE_S = 120.0
"""For Ray to find room; a cluster that scales up may need more than is idle."""
END_S = 12.0
"""For process 0 to answer everybody."""
FOLLOW_S = 3.0
"""For the others to end when process 0 has; one that was stopped does not."""
STARTS = 3
"""In a row that may fail, of an engine that was ready once."""
PASSED_ON = ("JAX_", "XLA_", "HF_", "NCCL_", "RCCL_")
"""Variables that mean the same on each host."""


@dataclass(frozen=True)
class Placed:
    """An actor that serves. is_here: on the driver's host; ended: what Ray makes of its end."""

    name: str
    pid: int
    is_here: bool
    actor: Any
    ended: ray.ObjectRef


class Driver:
    """Starts all processes, waits until one ends, and starts them again if it is to.

    argv: eagle3-serve's, without what tells one process from another.
    """

    def __init__(self, main: Main, argv: Sequence[str], options: RayOptions, say: Say):
        self._main = main
        self._argv, self._options, self._say = argv, options, say
        self._asked = 0
        self._placed: list[Placed] = []
        variables = {n: v for n, v in os.environ.items() if n.startswith(PASSED_ON)}
        ray.init(runtime_env={"env_vars": variables}, include_dashboard=False)
        self._address = get_node_ip_address()
        self._group = find_room(options, self._address)
        here = {f"node:{self._address}": 0.001}
        self._words = ray.remote(LastWords).options(num_cpus=0, resources=here).remote()

    def run(self) -> int:
        """The exit status: 0 when it was asked to stop, 1 for an engine that died, 2 for one that
        could not start."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)
        served, failed = False, 0
        while True:
            was_ready = self._run_once()
            if self._asked:
                return 0
            served, failed = served or was_ready, 0 if was_ready else failed + 1
            if not (served and self._options.restart):
                return 1 if served else 2
            if failed == STARTS:
                self._say(f"error: {STARTS} starts in a row failed; giving up")
                return 2
            again = f", start {failed + 1} of at most {STARTS}" if failed else ""
            self._say(f"starting all processes again{again}")

    def _run_once(self) -> bool:
        """Until a process has ended, and all others with it; whether the engine was ready."""
        was_ready, told = False, set[int]()
        ended: list[ray.ObjectRef] = []
        try:
            self._place()
            while not ended:
                ended, _ = ray.wait([p.ended for p in self._placed], timeout=LOOK_S)
                was_ready = was_ready or self._options.is_ready()
                told |= self._hear()
            for process, placed in enumerate(self._placed):
                if placed.ended in ended and process not in told and not self._asked:
                    self._say(f"error: {_how_it_ended(placed)}")
        except RayError as error:
            self._say(f"error: Ray: {error}")
        self._end_all()
        return was_ready

    def _hear(self) -> set[int]:
        """Says what processes had to say of their peers; which did."""
        if self._asked:
            return set()
        said: list[tuple[int, str]] = ray.get(self._words.take.remote(), timeout=PLACE_S)
        for process, reason in said:
            self._say(f"error: {self._placed[process].name} says: {reason}")
        return {process for process, _ in said}

    def _end_all(self) -> None:
        """Lets them end by themselves, then kills what is left: Ray would ask a process first, and
        one that was stopped hears nothing."""
        if not self._placed:
            return
        ended = [placed.ended for placed in self._placed]
        ray.wait(ended[:1], timeout=END_S)
        _, left = ray.wait(ended, num_returns=len(ended), timeout=FOLLOW_S)
        for placed in self._placed:
            if placed.ended in left and placed.is_here:
                with suppress(ProcessLookupError):
                    os.kill(placed.pid, signal.SIGKILL)
            ray.kill(placed.actor)
        with suppress(RayError):
            self._hear()

    def _place(self) -> None:
        key, self._placed = secrets.token_hex(32), []
        for process in range(self._options.num_processes):
            place = PlacementGroupSchedulingStrategy(self._group, process)
            own = {"num_cpus": 1, "num_gpus": self._group.bundle_specs[process].get("GPU", 0)}
            actor = ray.remote(Host).options(scheduling_strategy=place, **own).remote()
            address, pid = ray.get(actor.where.remote(), timeout=PLACE_S)
            argv = [*self._argv, *self._options.flags_of(process, self._address)]
            start = Start(process, os.getcwd(), self._words)
            ended = actor.serve.remote(self._main, argv, key, start)
            name = f"process {process} ({address})"
            self._placed.append(Placed(name, pid, address == self._address, actor, ended))
            self._say(f"process {process} of {self._options.num_processes}: {address}, pid {pid}")

    def _on_signal(self, number: int, _: FrameType | None) -> None:
        """The first drains process 0, which is on this host and ends the others; a second kills."""
        self._asked += 1
        if self._asked > 1 or not self._placed:
            os._exit(128 + number)
        with suppress(ProcessLookupError):
            os.kill(self._placed[0].pid, signal.SIGTERM)


def drive(main: Main, argv: Sequence[str], options: RayOptions, say: Say) -> int:
    """Serves until a signal; the exit status, 2 where Ray or its room is missing."""
    try:
        driver = Driver(main, argv, options, say)
    except (ValueError, ConnectionError) as error:
        say(f"eagle3-serve: error: {error}")
        return 2
    return driver.run()


def find_room(options: RayOptions, address: str) -> PlacementGroup:
    """A bundle a process, the first at this address; ValueError where Ray finds none."""
    nodes = [node for node in ray.nodes() if node["Alive"]]
    has_gpus = any("GPU" in node["Resources"] for node in nodes)  # AMD's and NVIDIA's.
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


def _how_it_ended(placed: Placed) -> str:
    try:
        return f"{placed.name} ended with status {ray.get(placed.ended)}"
    except RayActorError:
        return f"lost {placed.name}: Ray says that its pid {placed.pid} is dead"
