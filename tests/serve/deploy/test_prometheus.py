"""Dashboards and alerts over a Prometheus that scrapes demo servers; needs prometheus and promtool.

Durations in alerts.yaml are divided by SPEED, so that five minutes are five seconds. VLLM is a
checkout of vLLM, or nothing, whose dashboards are asked too.
"""

import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from probe import free_port, status_of, wait_for
from processes import Forked

from eagle3_tools.reference import ROOT

pytestmark = pytest.mark.long
DEPLOY = ROOT / "docs/deploy"
ALERTS = DEPLOY / "alerts.yaml"
SPEED = 60
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: [alerts.yaml]
scrape_configs:
  - job_name: eagle3
    static_configs: [{{targets: {targets}}}]
"""
VARIABLES = {"$__rate_interval": "15s", "$__interval": "15s", "$__range": "60s"}
PAIR = ["--demo", "--log-format", "json"]
wait = partial(wait_for, every_s=0.5)
CLIENT = httpx.Client(timeout=120, limits=httpx.Limits(max_keepalive_connections=0))


@dataclass
class Server:
    """A demo server at a port of its own."""

    flags: Sequence[str]
    port: int = field(default_factory=free_port)

    @property
    def instance(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def url(self) -> str:
        return f"http://{self.instance}"

    @contextmanager
    def running(self) -> Iterator[Forked]:
        with Forked("simulated_server", [*PAIR, *self.flags, "--port", f"{self.port}"]) as process:
            try:
                healthy = f"{self.url}/health"
                wait(lambda: status_of(healthy) == 200, 300, lambda: "the server was not ready")
                yield process
            finally:
                process.kill()


@contextmanager
def load(server: Server, clients: int, **body: Any) -> Iterator[None]:
    """Clients that ask, and ask again when they are answered."""
    over = threading.Event()
    asked = {"prompt": "What is 17 + 25?", "max_tokens": 60, "temperature": 1} | body

    def ask() -> None:
        while not over.is_set():
            with suppress(httpx.TransportError):
                if CLIENT.post(f"{server.url}/v1/completions", json=asked).status_code != 200:
                    time.sleep(0.5)

    threads = [threading.Thread(target=ask, daemon=True) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()


@dataclass
class Prometheus:
    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The series of an expression now."""
        answer = httpx.get(f"{self.url}/api/v1/query", params={"query": expression}, timeout=30)
        assert answer.status_code == 200, f"{expression}: {answer.text}"
        return answer.json()["data"]["result"]

    def has_data(self, expression: str) -> bool:
        """Whether a series has a number."""
        return any(series["value"][1] != "NaN" for series in self.query(expression))

    def firing(self) -> set[tuple[str, str]]:
        """The names and the instances of the alerts that fire."""
        alerts = httpx.get(f"{self.url}/api/v1/alerts", timeout=30).json()["data"]["alerts"]
        labels = [alert["labels"] for alert in alerts if alert["state"] == "firing"]
        return {(one["alertname"], one["instance"]) for one in labels}

    def wait_for(self, alert: str, server: Server) -> None:
        wanted = alert, server.instance
        wait(lambda: wanted in self.firing(), 120, lambda: f"no {alert}: {self.firing()}")


@contextmanager
def scraping(folder: Path, servers: Sequence[Server]) -> Iterator[Prometheus]:
    """A Prometheus of these servers, with the alerts in quick motion."""
    seconds = {"m": 60, "h": 3600}
    quick = re.sub(
        r"\b(\d+)([mh])\b",
        lambda found: f"{int(found[1]) * seconds[found[2]] // SPEED}s",
        ALERTS.read_text(),
    )
    (folder / "alerts.yaml").write_text(quick)
    targets = json.dumps([server.instance for server in servers])
    (folder / "prometheus.yaml").write_text(CONFIG.format(targets=targets))
    address = f"127.0.0.1:{free_port()}"
    command = ["prometheus", f"--config.file={folder / 'prometheus.yaml'}"]
    command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address={address}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        url = f"http://{address}"
        ready = f"{url}/-/ready"
        wait(lambda: status_of(ready) == 200, 60, lambda: (folder / "log").read_text())
        yield Prometheus(url)
    finally:
        process.terminate()
        process.wait(30)


def expressions(dashboard: Path, model: str) -> Iterator[str]:
    """The expressions of a dashboard's panels, those in rows too, for a model."""
    todo: list[Any] = [json.loads(dashboard.read_text())["panels"]]
    while todo:
        found = todo.pop()
        if isinstance(found, dict) and isinstance(found.get("expr"), str):
            expression = found["expr"]
            for name, value in VARIABLES.items():
                expression = expression.replace(name, value)
            yield re.sub(r"\$\w+", model, expression)
        todo += (
            found.values() if isinstance(found, dict) else found if isinstance(found, list) else ()
        )


def dashboards() -> list[Path]:
    checkout = os.environ.get("VLLM")
    folder = Path(checkout or "", "examples/observability")
    theirs = sorted(folder.rglob("*.json")) if checkout else []
    assert theirs or not checkout, f"VLLM: {folder} has no dashboards"
    return [DEPLOY / "grafana.json", *theirs]


def test_alerts_fire_under_their_faults_and_not_beside_them() -> None:
    rules = Path(__file__).with_name("alert_rules.yaml")
    for command in (["check", "rules", ALERTS], ["test", "rules", rules]):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_every_expression_of_the_dashboards_has_data(tmp_path: Path) -> None:
    server = Server(["--kv-role", "both", "--max-num-seqs", "4"])
    with server.running(), load(server, 6), scraping(tmp_path, [server]) as prometheus:
        asked = {file: set(expressions(file, "eagle3-demo")) for file in dashboards()}
        every = set().union(*asked.values())
        wait(
            lambda: all(map(prometheus.has_data, every)),
            120,
            lambda: [one for one in every if not prometheus.has_data(one)],
        )
        for file, found in asked.items():
            print(f"{file.parent.name}/{file.name}: {len(found)} expressions, all with data")
        assert prometheus.firing() == set()
