"""10,000 requests that no client should send, at `eagle3-serve --demo`: `make prove-server`.

Half of them come from schemathesis, by the server's own OpenAPI, if that is installed (extra
`fuzz`). Exit status 0: no 5xx, no crash, no page kept, memory flat.
"""

import argparse
import itertools
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
from fuzz_requests import Sent, requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from eagle3_tools.bench.load.server_process import metric, serving

CLIENTS = 8
PATIENCE_S = 30.0
TRICKLES = 5
MIB = 2**20
PARTS = 10
MOST_GROWTH_MIB = 64
"""Of resident memory from a fifth of the way to the end; allocators keep some."""

ERRORS_IN_STREAMS = (b'"type":"server_error"', b'"code":"server_error"', b'"type":"api_error"')
"""Of each protocol."""


@dataclass
class Report:
    """Number of answers by status, and every answer that is a server error."""

    statuses: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, what: str, answer: bytes) -> None:
        """Counts an answer; none is a client that went away, or was hung up on."""
        status = answer[9:12].decode("latin-1") if answer.startswith(b"HTTP/1.1 ") else "none"
        self.statuses[status] += 1
        if status.startswith("5"):
            self.failures.append(f"{what}: {answer[:2000]!r}")
        elif any(mark in answer for mark in ERRORS_IN_STREAMS):
            self.failures.append(f"{what}: an event of error {answer[-2000:]!r}")


def send(url: httpx.URL, sent: Sent) -> bytes:
    """Sends one request in its manner; the answer as bytes, empty for clients that don't wait."""
    with suppress(OSError), socket.create_connection((url.host, url.port or 80)) as connection:
        connection.settimeout(PATIENCE_S)
        half = sent.data[: len(sent.data) // 2]
        if sent.manner == "slow":
            size = max(1, len(sent.data) // TRICKLES)
            for start in range(0, len(sent.data), size):
                connection.sendall(sent.data[start : start + size])
                time.sleep(0.02)
        else:
            connection.sendall(half if sent.manner == "half" else sent.data)
        if sent.manner in ("half", "vanishes"):
            return b""
        pieces = []
        with suppress(OSError):
            while piece := connection.recv(65536):
                pieces.append(piece)
        return b"".join(pieces)
    return b""


def fuzz(url: httpx.URL, stream: Iterator[Sent], count: int) -> Report:
    report = Report()
    with ThreadPoolExecutor(CLIENTS) as pool:
        for start in range(0, count, CLIENTS):
            batch = list(islice(stream, min(CLIENTS, count - start)))
            for sent, answer in zip(batch, pool.map(partial(send, url), batch), strict=True):
                report.add(f"{sent.what} ({sent.manner}) {sent.data[:600]!r}", answer)
    return report


def by_schemathesis(url: httpx.URL, openapi: dict[str, Any], count: int) -> Report:
    """At most `count` requests, half of which fit the description, and half don't quite."""
    schemathesis = import_module("schemathesis")
    schema = schemathesis.openapi.from_dict(openapi)
    operations = [result.ok() for result in schema.get_all_operations()]
    operations = [operation for operation in operations if operation.method == "post"]
    report = Report()
    for operation, mode in itertools.product(operations, schemathesis.GenerationMode):
        strategy = operation.as_strategy(generation_mode=mode)

        @settings(
            max_examples=max(1, count // (2 * len(operations))),
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=cast(list[HealthCheck], list(HealthCheck)),
        )
        @given(case=strategy)
        def ask(case: Any) -> None:
            try:
                answer = case.call(base_url=str(url), timeout=PATIENCE_S)
            except Exception:  # Cases that its HTTP client can't send, or that take too long.
                report.statuses["none"] += 1
                return
            answered = f"HTTP/1.1 {answer.status_code} ".encode() + answer.content
            report.add(f"{case.method} {case.path} {case.body!r}", answered)

        with suppress(Unsatisfiable):
            ask()
    return report


def leftovers(http: httpx.Client) -> dict[str, float]:
    """Requests and pages that are still held, once nothing is under way."""
    names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        text = http.get("/metrics").text
        held = {name: metric(text, f"vllm:{name}") for name in names}
        if not any(held.values()) or time.monotonic() > deadline:
            return {name: value for name, value in held.items() if value}
        time.sleep(0.1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, default=Path("fuzz_server.log"))
    flags = parser.parse_args()
    with (
        serving(["--demo", "--client-timeout", "2"], flags.log) as (server, address),
        httpx.Client(base_url=address) as http,
    ):
        url, process = httpx.URL(address), psutil.Process(server.pid)
        openapi = http.get("/openapi.json").json()
        stream, memory, total = requests(openapi, flags.seed), [], Report()
        if find_spec("schemathesis"):
            total = by_schemathesis(url, openapi, flags.requests // 2)
            print(f"{total.statuses.total()} sent by schemathesis", flush=True)
        rest = flags.requests - total.statuses.total()
        for part in range(PARTS):
            report = fuzz(url, stream, rest * (part + 1) // PARTS - rest * part // PARTS)
            total.statuses += report.statuses
            total.failures += report.failures
            memory.append(process.memory_info().rss // MIB)
            print(f"{total.statuses.total()} sent, {memory[-1]} MiB", flush=True)
        alive = http.get("/health").status_code == 200
        held = leftovers(http)
    print(f"statuses: {dict(sorted(total.statuses.items()))}")
    print(f"memory in MiB: {memory}; healthy: {alive}; still held: {held or 'nothing'}")
    for failure in total.failures:
        print(failure)
    grown = memory[-1] - memory[1]
    return int(bool(total.failures or held or not alive or grown > MOST_GROWTH_MIB))


if __name__ == "__main__":
    sys.exit(main())
