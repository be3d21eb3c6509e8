"""The probes of kubernetes/server.yaml do what they are for, at servers in trouble."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
import yaml
from probe import free_port
from processes import Forked
from troubled_server import START_S

from eagle3_tools.reference import ROOT

pytestmark = pytest.mark.long
SPEED = 20
"""Periods are divided by it."""
MANIFEST = ROOT / "docs/deploy/kubernetes/server.yaml"
CONTAINER = next(yaml.safe_load_all(MANIFEST.read_text()))["spec"]["template"]["spec"][
    "containers"
][0]
READY_S = 340.0
"""For a server to start on a busy machine; the startup probe gives up after 360 s here."""
FLAGS = ["--demo", "--max-num-seqs", "2", "--log-format", "json"]


class Probe:
    """A probe of the manifest, with Kubernetes' defaults; it asks when it is due."""

    def __init__(self, name: str, url: str) -> None:
        given = CONTAINER[f"{name}Probe"]
        self.url = url + given["httpGet"]["path"]
        self.period_s = given.get("periodSeconds", 10) / SPEED
        self.timeout_s = given.get("timeoutSeconds", 1)
        self.threshold = given.get("failureThreshold", 3)
        self.failures, self.holds, self._due = 0, False, 0.0

    @property
    def patience_s(self) -> float:
        return self.period_s * self.threshold

    def look(self) -> None:
        """Ask if it is time to."""
        if (now := time.monotonic()) < self._due:
            return
        self._due = now + self.period_s
        try:
            answer = httpx.get(self.url, timeout=self.timeout_s)
            passed = 200 <= answer.status_code < 400
        except httpx.TransportError:
            passed = False
        self.failures = 0 if passed else self.failures + 1
        self.holds = passed or (self.holds and not self.gives_up)

    @property
    def gives_up(self) -> bool:
        return self.failures >= self.threshold


class Kubelet:
    """Startup until it passes once, then readiness and liveness, as Kubernetes does."""

    def __init__(self, url: str) -> None:
        self.startup, self.liveness, self.readiness = (
            Probe(name, url) for name in ("startup", "liveness", "readiness")
        )
        self.started = False

    @property
    def ready(self) -> bool:
        return self.started and self.readiness.holds

    @property
    def restarts(self) -> bool:
        """Whether it kills the container."""
        return self.startup.gives_up or self.liveness.gives_up

    def watch(self, until: Callable[[], bool], timeout_s: float) -> None:
        """Probe until the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not until():
            assert time.monotonic() < deadline, f"not within {timeout_s} s"
            for probe in (self.liveness, self.readiness) if self.started else (self.startup,):
                probe.look()
            self.started = self.started or self.startup.holds
            time.sleep(0.05)


@contextmanager
def starting(*flags: str) -> Iterator[tuple[Forked, Kubelet, str]]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Forked("troubled_server", [*FLAGS, *flags, "--port", f"{port}"]) as server:
        try:
            yield server, Kubelet(url), url
        finally:
            server.kill()


def test_a_slow_start_is_waited_for_and_a_hung_engine_ends_by_itself() -> None:
    with starting("--watchdog-timeout", "4") as (server, kubelet, url):
        assert kubelet.liveness.patience_s < START_S, "else the start would not be slow"
        begun = time.monotonic()
        kubelet.watch(lambda: kubelet.ready, READY_S)
        assert time.monotonic() - begun > START_S and not kubelet.restarts
        body = {"prompt": "abc", "max_tokens": 4}
        asked = threading.Thread(
            target=lambda: httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        )
        asked.start()
        kubelet.watch(lambda: server.poll() is not None, 60)
        asked.join()
        assert server.wait(1) == 1 and not kubelet.restarts
        kubelet.watch(lambda: not kubelet.ready, 10)


def test_a_server_that_answers_nothing_is_restarted() -> None:
    with starting() as (server, kubelet, _):
        kubelet.watch(lambda: kubelet.ready, READY_S)
        server.send_signal(signal.SIGSTOP)
        kubelet.watch(lambda: kubelet.restarts, 60)
        assert not kubelet.ready and kubelet.liveness.gives_up and not kubelet.startup.gives_up
