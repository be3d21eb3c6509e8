"""The clients of both protocols complete all their requests; `make clients` has the others."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from clients.client import Client, Server
from clients.packages import ANTHROPIC, OPENAI
from clients.runs import demo_server, run_client
from kv_index import IndexCopy
from processes import serving
from vllm_wire import Subscriber, apply


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses at which the server publishes KV events and replays them."""
    directory = tmp_path_factory.mktemp("events")
    return {name: f"ipc://{directory}/{name}" for name in ("endpoint", "replay_endpoint")}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, events: dict[str, str]) -> Iterator[Server]:
    """One request at a time: fewer programs to compile."""
    config = json.dumps({"enable_kv_cache_events": True, **events})
    flags = ["--demo", "--max-num-seqs", "1", "--kv-events-config", config]
    with (
        serving(flags, module="few_programs") as (_, url),
        demo_server(tmp_path_factory.mktemp("s"), url=url) as running,
    ):
        yield running


@pytest.mark.parametrize("client", [OPENAI, ANTHROPIC], ids=lambda c: c.distribution)
def test_every_request_of_the_client_completes(
    server: Server, client: Client, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    run = run_client(client, server, Path(sys.executable).parent, results)
    assert run.good, f"{run}\n{(results / 'log').read_text()[-4000:]}"


def test_a_server_publishes_every_event_of_its_prefix_index(
    server: Server, events: dict[str, str]
) -> None:
    """A replay from the first event applies without a contradiction, also behind the clients."""
    body = {"model": "eagle3-demo", "prompt": "What is a page? " * 9, "max_tokens": 1}
    with httpx.Client(base_url=server.url, timeout=60) as http:
        assert http.post("/v1/completions", json=body).status_code == 200
        found = re.search(r"kv_events_published_total{.*} (\d+)", http.get("/metrics").text)
    copy, count = IndexCopy(), 0
    with Subscriber(events["endpoint"], events["replay_endpoint"]) as subscriber:
        for number, (told, batch) in enumerate(subscriber.replay(0)):
            assert told == number
            apply(copy, batch)
            count += len(batch.events)
    assert copy.places and found and count >= int(found[1]) > 0
