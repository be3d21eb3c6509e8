"""Clients that install in seconds complete all their requests; `make clients` has the others."""

import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from clients import anthropic_client, lm_eval_client, locust_client, openai_client
from clients.client import Client, Counts, Server
from clients.runs import demo_server, run_client

PROMPTS = 4
LM_EVAL = replace(
    lm_eval_client.CLIENTS[0],
    command=partial(lm_eval_client.command, *lm_eval_client.ONE_RUN, prompts=PROMPTS),
)
LIGHT = (
    LM_EVAL,
    *openai_client.CLIENTS,
    *anthropic_client.CLIENTS,
    *locust_client.CLIENTS,
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One request at a time: fewer programs to compile."""
    with demo_server(tmp_path_factory.mktemp("server"), "--max-num-seqs", "1") as running:
        yield running


@pytest.mark.parametrize("client", LIGHT, ids=lambda c: c.distribution)
def test_every_request_of_the_client_completes(
    server: Server, client: Client, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    run = run_client(client, server, Path(sys.executable).parent, results)
    assert run.good, f"{run}\n{(results / 'log').read_text()[-4000:]}"
    if client is LM_EVAL:
        assert run.counts == Counts(3 * PROMPTS, 0)
        assert lm_eval_client.accuracy(results) >= 0.5
