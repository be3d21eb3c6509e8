"""The clients of both protocols complete all their requests; `make clients` has the others."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from clients.client import Client, Server
from clients.packages import ANTHROPIC, OPENAI
from clients.runs import demo_server, run_client
from processes import serving


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One request at a time: fewer programs to compile."""
    with (
        serving(["--demo", "--max-num-seqs", "1"], module="few_programs") as (_, url),
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
