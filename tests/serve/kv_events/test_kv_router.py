"""A router that was made for vLLM sends each prompt to the server whose pages it begins with.

vllm-router (PyPI, 0.1.17, no GPU) with its policy kv_aware: it knows servers by their events alone.
It refuses events with lookahead_token_ids, so they go without.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from fake_server import Served, served_by
from probe import free_port, wait_for
from simulated_device import VOCAB, simulated_pair

from eagle3_jax.engine import Engine, EngineConfig
from serve.kv_events.config import KVEventsConfig
from serve.kv_events.publisher import KVEventPublisher

PAGE = 16
CONFIG = EngineConfig(page_size=PAGE, max_model_len=128, max_num_seqs=2, prefill_chunk=64)
ANY = "tcp://127.0.0.1:0"
EVENTS = KVEventsConfig(ANY, ANY, lookahead_token_ids=False)
START_S = 60.0


@pytest.fixture
def replicas(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Served, KVEventPublisher]]]:
    """Two servers: the real engine on a simulated device, each with a publisher."""
    target, draft = simulated_pair(monkeypatch)
    with ExitStack() as stack:
        servers = []
        for _ in range(2):
            publisher = stack.enter_context(KVEventPublisher(EVENTS))
            engine = Engine(target, draft, CONFIG, kv_events=publisher.log)
            server = stack.enter_context(served_by(engine, kv_events=publisher))
            servers.append((server, publisher))
        yield servers


@contextmanager
def router(replicas: list[tuple[Served, KVEventPublisher]], log: Path) -> Iterator[httpx.Client]:
    """The router over the servers, once it has heard of both."""
    command = [sys.executable, "-m", "vllm_router.launch_router", "--policy", "kv_aware"]
    command += ["--kv-event-model", "fake", "--kv-event-block-size", f"{PAGE}"]
    for server, publisher in replicas:
        url = address(server)
        command += ["--kv-event-source", f"{url}={publisher.endpoint}"]
        command += ["--kv-event-replay-source", f"{url}={publisher.replay_endpoint}"]
    command += ["--worker-urls", *(address(server) for server, _ in replicas)]
    port = free_port()
    command += ["--host", "127.0.0.1", "--port", f"{port}", "--log-level", "debug"]
    command += ["--prometheus-port", f"{free_port()}"]
    direct = {**os.environ, "NO_PROXY": "*", "no_proxy": "*"}
    with log.open("w") as output:
        process = subprocess.Popen(command, env=direct, stdout=output, stderr=output)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            wait_for(lambda: process.poll() is not None or heard(replicas, log), START_S)
            assert process.poll() is None, log.read_text()
            yield client
    finally:
        process.terminate()
        process.wait(20)


def heard(replicas: list[tuple[Served, KVEventPublisher]], log: Path) -> bool:
    """Return whether the router's log has each publisher's newest batch. A server that the router
    has not heard yet publishes something."""
    text = re.sub(r"\x1b\[\d*m", "", log.read_text())
    found = re.findall(r"sequence advanced source=(\S+) rank=0 seq=(\d+)", text)
    newest = {url: int(number) for url, number in found}
    for server, _ in replicas:
        if address(server) not in newest:
            assert server.http.post("/reset_prefix_cache").status_code == 200
    last = {address(server): publisher._next_number - 1 for server, publisher in replicas}
    return newest == last


def address(server: Served) -> str:
    return str(server.http.base_url).rstrip("/")


def stem(number: int) -> list[int]:
    """The tokens of three pages."""
    return [(number * i * i + 3 * i + number) % VOCAB for i in range(3 * PAGE)]


def ask(client: httpx.Client, prompt: list[int]) -> None:
    body = {"model": "fake", "prompt": prompt, "max_tokens": 1}
    assert client.post("/v1/completions", json=body).status_code == 200


def hits(server: Served) -> int:
    return server.service.engine.stats.prefix_cache_hits


def test_a_router_of_vllms_sends_prompts_where_their_pages_are(
    replicas: list[tuple[Served, KVEventPublisher]], tmp_path: Path
) -> None:
    """Three pages of each stem lie on one server; those that go elsewhere would find none."""
    log = tmp_path / "router.log"
    with router(replicas, log) as client:
        for number, (server, _) in enumerate(replicas):
            ask(server.http, [*stem(number), 0, 1])
        wait_for(lambda: heard(replicas, log), START_S)
        for round in range(3):
            for number in (1, 0, 0, 1):
                ask(client, [*stem(number), 0, 2 + round])
    assert [hits(server) for server, _ in replicas] == [6 * 3 * PAGE] * 2
    metrics = replicas[0][0].http.get("/metrics").text
    assert re.search(r"eagle3:kv_events_published_total{.*} [1-9]", metrics)
    assert re.search(r"eagle3:kv_event_batches_dropped_total{.*} 0\n", metrics)
