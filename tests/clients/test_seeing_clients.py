"""Clients that send pictures to the embedded pair that sees get right answers."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from clients.client import Client, Server
from clients.runs import demo_server, run_client
from clients.seeing_clients import SHORT, Accuracy


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One request at a time: fewer programs to compile."""
    with demo_server(
        tmp_path_factory.mktemp("server"), "--max-num-seqs", "1", sees=True
    ) as running:
        yield running


@pytest.mark.long
@pytest.mark.parametrize(("client", "command", "accuracy"), SHORT, ids=["openai", "lm_eval"])
def test_a_client_that_sends_pictures_gets_right_answers(
    server: Server,
    client: Client,
    command: Callable[..., list[str]],
    accuracy: Accuracy,
    tmp_path: Path,
) -> None:
    results = tmp_path / "results"
    short = replace(client, command=command)
    run = run_client(short, server, Path(sys.executable).parent, results)
    assert run.good, f"{run}\n{(results / 'log').read_text()[-4000:]}"
    assert accuracy(results) >= 0.5
