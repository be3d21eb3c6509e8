"""Bodies that make a server work, and whether others notice: `make prove-server` posts them all.

CLIENTS clients post a body at once, one streams, another asks for /health. Exit status 0: no
answer but 200, 400, 404, 413 and 429, nobody waited for /health above HEALTH_S, nor above TOKEN_S
for the next token of a stream that had begun.
"""

import argparse
import math
import multiprocessing
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import httpx
from long_bodies import BODIES, COMPLETIONS

from eagle3_tools.bench.load.server_process import serving

CLIENTS = 16
HEALTH_S = 0.5
TOKEN_S = 1.0
PATIENCE_S = 300.0


class Waited(NamedTuple):
    """The longest times that others waited, in seconds."""

    health: float
    token: float


class Others:
    """A client that streams and one that asks for /health, in a process beside who posts."""

    def __init__(self, url: httpx.URL) -> None:
        context = multiprocessing.get_context("spawn")
        self._longest: Any = context.Array("d", 2)
        self._since: Any = context.Array("d", [math.inf] * 2)
        self._end = context.Event()
        given = str(url), self._longest, self._since, self._end
        self._process = context.Process(target=_ask_and_stream, args=given, daemon=True)

    @property
    def seen(self) -> Waited:
        """Since the last reset, with what they wait for right now."""
        now = time.monotonic()
        pairs = zip(self._longest, self._since, strict=True)
        return Waited(*(max(longest, now - since) for longest, since in pairs))

    def reset(self) -> None:
        self._longest[:] = [0.0, 0.0]

    @contextmanager
    def running(self) -> Iterator["Others"]:
        """Both, within the block. Raises RuntimeError where one of them failed."""
        self._process.start()
        try:
            while not self._longest[0] and self._process.is_alive():
                time.sleep(0.01)
            yield self
        finally:
            self._end.set()
            self._process.join()
        if self._process.exitcode:
            raise RuntimeError("a client beside those who post failed, as it said above")


def _ask_and_stream(url: str, longest: Any, since: Any, end: Any) -> None:
    """Notes under 0 what /health takes, under 1 what the next token of a stream takes."""

    def waited(kind: int) -> None:
        now = time.monotonic()
        longest[kind] = max(longest[kind], now - since[kind])
        since[kind] = now

    def ask() -> None:
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
            while not end.wait(0.02):
                since[0] = time.monotonic()
                assert http.get("/health").status_code == 200
                waited(0)
                since[0] = math.inf

    def stream() -> None:
        body = {"prompt": "a", "max_tokens": 150, "ignore_eos": True, "stream": True}
        with httpx.Client(base_url=url, timeout=PATIENCE_S) as http:
            while not end.is_set():
                with http.stream("POST", COMPLETIONS, json=body) as answer:
                    assert answer.status_code == 200
                    for _ in answer.iter_lines():
                        waited(1)
                since[1] = math.inf

    with ThreadPoolExecutor(2) as pool:
        for running in [pool.submit(ask), pool.submit(stream)]:
            running.result()


def post(url: httpx.URL, name: str, others: Others, clients: int = 1) -> tuple[set[int], float]:
    """Posts a body, so many clients at once; the statuses and the seconds until all were there."""
    path, make = BODIES[name]
    body = make()
    headers = {"content-type": "application/json"}

    def send(_: int) -> int:
        asked = httpx.stream(
            "POST", url.join(path), content=body, headers=headers, timeout=PATIENCE_S
        )
        with asked as answer:
            for _piece in answer.iter_raw():
                pass
        return answer.status_code

    others.reset()
    began = time.monotonic()
    with ThreadPoolExecutor(clients) as pool:
        statuses = set(pool.map(send, range(clients)))
    seconds = time.monotonic() - began
    return statuses, seconds


def main() -> int:
    """Returns 0 if nobody waited too long for anything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=[""], help="parts of the names of bodies")
    parser.add_argument("--clients", type=int, default=CLIENTS)
    flags = parser.parse_args()
    failed = []
    with (
        serving(["--demo"], "hostile_bodies.log") as (_, address),
        Others(url := httpx.URL(address)).running() as others,
    ):
        time.sleep(1.0)
        print(f"{'status':>6} {'seconds':>8} {'/health':>8} {'token':>8}  body")
        for name in [name for name in BODIES if any(part in name for part in flags.names)]:
            statuses, seconds = post(url, name, others, flags.clients)
            seen, status = others.seen, "/".join(map(str, sorted(statuses)))
            print(
                f"{status:>6} {seconds:8.3f} {seen.health:8.3f} {seen.token:8.3f}  {name}",
                flush=True,
            )
            late = seen.health > HEALTH_S or seen.token > TOKEN_S
            if late or not statuses <= {200, 400, 404, 413, 429}:
                failed.append(name)
    print("failed:", ", ".join(failed) or "none")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
