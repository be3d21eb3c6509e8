"""The client of the benchmark: what it reads from servers good and bad."""

import asyncio
import json
from typing import Any

import numpy as np
import pytest
from fake_engine import FakeEngine
from fake_server import Served
from raw_server import answering, chunked

from eagle3_tools.bench.load.http_client import Address
from eagle3_tools.bench.load.lengths import Endpoint
from eagle3_tools.bench.load.openai_server import Outcome, Server
from eagle3_tools.bench.load.prompts import Prompt
from eagle3_tools.bench.load.traffic import send, warm_up

PROMPT = Prompt("hello", "hello", 5, 7)


def events(*bodies: Any) -> bytes:
    lines = [b"data: " + json.dumps(body).encode() for body in bodies]
    return b"\n\n".join([*lines, b"data: [DONE]", b""])


TOKEN = {"choices": [{"text": "ab"}]}
USAGE = {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}}


def ask(*pieces: bytes) -> Outcome:
    async def run() -> Outcome:
        async with answering(*pieces) as address:
            return await Server(address, "m").answer(PROMPT)

    return asyncio.run(run())


def at(served: Served, endpoint: Endpoint = "completions") -> Server:
    return Server(Address.of(f"{served.http.base_url}"), "fake", endpoint)


@pytest.mark.parametrize("endpoint", ["completions", "chat"])
def test_tokens_are_counted_by_the_server_however_many_come_in_an_event(
    fake: Served, endpoint: Endpoint
) -> None:
    outcome = asyncio.run(at(fake, endpoint).answer(PROMPT))
    assert outcome.error is None
    assert (outcome.prompt_tokens, outcome.completion_tokens) == (5, 7)
    # Seven tokens, two a step or more: at most three events follow the first.
    assert len(outcome.text) == 7 and len(outcome.gaps) <= 3
    assert 0 < outcome.ttft <= outcome.latency
    assert outcome.latency == pytest.approx(outcome.ttft + sum(outcome.gaps))


def test_synthetic_acceptance_is_noticed(serve: Any) -> None:
    served = serve(FakeEngine(synthetic_acceptance_length=2.88))
    assert asyncio.run(at(served).answer(PROMPT)).synthetic == 2.88


@pytest.mark.parametrize("cut", [1, 7, 30, 1000])
def test_events_are_the_same_wherever_chunks_are_cut(cut: int) -> None:
    body = events(TOKEN, TOKEN, USAGE)
    parts = [body[i : i + cut] for i in range(0, len(body), cut)]
    outcome = ask(*chunked(parts))
    assert (outcome.error, outcome.text, outcome.completion_tokens) == (None, "abab", 7)
    assert len(outcome.gaps) == 1


def test_a_body_may_end_with_the_connection_or_after_so_many_bytes() -> None:
    body = events(TOKEN, USAGE)
    assert ask(b"HTTP/1.1 200 OK\r\n\r\n", body).text == "ab"
    length = b"Content-Length: %d" % len(body)
    assert ask(b"HTTP/1.1 200 OK\r\n" + length + b"\r\n\r\n", body).text == "ab"


def test_an_event_that_only_names_the_role_is_no_token() -> None:
    role = {"choices": [{"delta": {"role": "assistant", "content": ""}}]}
    said = {"choices": [{"delta": {"reasoning_content": "hm"}}]}
    outcome = ask(*chunked([events(role, said, USAGE)]))
    assert outcome.text == "hm" and not outcome.gaps


@pytest.mark.parametrize(
    ("pieces", "reason"),
    [
        ([b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"error": "no"}'], 'status 400: {"error": "no"}'),
        (chunked([events(TOKEN, {"error": {"message": "lost"}})]), "lost"),
        (chunked([b"data: " + json.dumps(TOKEN).encode() + b"\n\n"]), "the answer broke off"),
        (chunked([events(USAGE)]), "the answer has no token"),
        (chunked([events(TOKEN)])[:1], "the connection ended within the answer"),
        ([b"SSH-2.0\r\n"], "which is not HTTP/1.1"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10\r\ndata"], "Incomplete"),
        (chunked([b"data: {\n\n"]), "JSONDecodeError"),
    ],
)
def test_every_failure_has_its_reason(pieces: list[bytes], reason: str) -> None:
    outcome = ask(*pieces)
    assert outcome.error is not None and reason in outcome.error


def test_no_more_requests_are_under_way_than_asked_for(serve: Any) -> None:
    served = serve(FakeEngine(step_s=0.002))
    most = 0

    async def run() -> int:
        nonlocal most
        sending = asyncio.create_task(send(at(served), [PROMPT] * 12, 3))
        while not sending.done():
            most = max(most, len(served.engine.running))
            await asyncio.sleep(0.001)
        return len((await sending).outcomes)

    assert asyncio.run(run()) == 12
    assert most == 3


def test_a_rate_spreads_arrivals(fake: Served) -> None:
    traffic = asyncio.run(send(at(fake), [PROMPT] * 8, 8, rate=20, seed=1))
    # The first comes at once.
    between = np.random.default_rng(1).exponential(1 / 20, 8)[1:]
    assert traffic.duration >= between.sum() > 0.1


def test_a_warm_up_that_always_fails_ends_the_benchmark() -> None:
    async def run() -> None:
        async with answering(b"HTTP/1.1 503 Busy\r\n\r\n") as address:
            await warm_up(Server(address, "m"), PROMPT, 4, 2)

    with pytest.raises(OSError, match=r"every warm-up request failed.*status 503"):
        asyncio.run(run())


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://a:80/v1/", Address("a", 80, False)),
        ("https://a", Address("a", 443, True)),
        ("a:8000", Address("a", 8000, False)),
        ("http://a/engine/v1", Address("a", 80, False, "/engine")),
    ],
)
def test_addresses_are_written_as_for_other_clients(url: str, address: Address) -> None:
    assert Address.of(url) == address


def test_an_address_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="--url must be"):
        Address.of("ftp://a")


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_the_key_and_the_host_go_into_the_header(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    seen = []

    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            seen.append(await reader.readuntil(b"\r\n\r\n"))
            writer.close()

        server = await asyncio.start_server(answer, host.strip("[]"), 0)
        async with server:
            place = f"{host}:{server.sockets[0].getsockname()[1]}"
            await Server(Address.of(f"http://{place}"), "m").answer(PROMPT)
            assert f"\r\nHost: {place}\r\n".encode() in seen[0]

    asyncio.run(run())
    assert b"Authorization: Bearer secret" in seen[0]
