"""Prometheus itself, over a server that works: each expression of our dashboard gives a number."""

import json
import math
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine
from fake_server import Served
from test_dashboards import targets

SCRAPES = 12
SCRAPE = "500ms"
VARIABLES = {"$model_name": ".*", "$__rate_interval": "5s"}
CONFIG = """\
global: {{scrape_interval: {every}, scrape_timeout: {every}}}
scrape_configs:
  - job_name: eagle3
    static_configs: [{{targets: ["{target}"]}}]
"""
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "abcd", "max_tokens": 6, "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9}),
    ("/v1/completions", {"prompt": "abcd", "max_tokens": 6, "stream": True}),
    ("/v1/completions", {"prompt": "abcd", "n": -1}),
]


@pytest.fixture
def prometheus(
    request: pytest.FixtureRequest, tmp_path: Path, serve: Callable[..., Served]
) -> Iterator[httpx.Client]:
    """It has read the metrics of a server while this answered."""
    program = shutil.which("prometheus")
    if program is None or not request.config.getoption("--long"):
        pytest.skip("run with --long where Prometheus is installed")
    server = serve(FakeEngine(width=3, step_s=0.001, cached_tokens=2))
    target = f"{server.http.base_url.host}:{server.http.base_url.port}"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = tmp_path / "prometheus.yml"
    config.write_text(CONFIG.format(every=SCRAPE, target=target), encoding="utf-8")
    flags = (
        ("config.file", config),
        ("storage.tsdb.path", tmp_path),
        ("web.listen-address", address),
    )
    command = [program, "--log.level=warn", *(f"--{name}={value}" for name, value in flags)]
    with (
        subprocess.Popen(command) as process,
        httpx.Client(base_url=f"http://{address}") as client,
    ):
        try:
            _work_until_read(server, client)
            yield client
        finally:
            process.terminate()


def _work_until_read(server: Served, client: httpx.Client) -> None:
    deadline = time.monotonic() + 120
    while not _values(client, f"count_over_time(up[1h]) >= {SCRAPES}"):
        assert time.monotonic() < deadline, "Prometheus did not read the metrics"
        for path, body in ASKED:
            server.http.post(path, json={**body, "seed": 0})


def _values(client: httpx.Client, expression: str) -> list[float]:
    """Those of each series; none before Prometheus answers."""
    try:
        answer = client.get("/api/v1/query", params={"query": expression}).json()
    except (httpx.TransportError, json.JSONDecodeError):
        return []
    assert answer["status"] == "success", answer
    result = answer["data"]["result"]
    return [float(series["value"][1]) for series in result]


def test_every_panel_shows_numbers(prometheus: httpx.Client) -> None:
    for target in targets():
        expression = target["expr"]
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        values = _values(prometheus, expression)
        assert values and any(map(math.isfinite, values)), target["expr"]
