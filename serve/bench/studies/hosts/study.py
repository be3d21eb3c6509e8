"""What a call costs between processes: from process 0's send until the other's thread has it.

Process 0 and one follower on this machine, encrypted, as eagle3-serve talks, and beside them two of
ZeroMQ's sockets with the same encryption and nothing else: what no code around them undercuts.
Calls of the size of a round's come every few milliseconds, as rounds do; each carries the time at
which it was sent, which both processes read from one clock.
"""

import argparse
import multiprocessing
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console

from serve.bench.common.command import finish
from serve.bench.common.conditions import conditions
from serve.bench.common.flags import add_shared, check_flags, use_embedded_pair
from serve.bench.studies.hosts.questions import answer, ask, driving
from serve.options.hosts import HostOptions

MOST_US = 200.0
"""What the median may be."""
CALL_BYTES = 4096
EVERY_S = 0.003
_SENT = struct.Struct("<q")


@dataclass(frozen=True)
class HostsRecord:
    """Microseconds: median and spread of calls to arrive, of the send alone, and of what two bare
    sockets take; of answers to whoever has no devices."""

    calls: int
    bytes: int
    median_us: float
    p5_us: float
    p95_us: float
    send_us: float
    sockets_us: float
    answer_us: float
    answer_p5_us: float
    answer_p95_us: float

    @property
    def holds(self) -> bool:
        """Whether the median is as low as it must be."""
        return self.median_us <= MOST_US


def add_flags(parser: argparse.ArgumentParser) -> None:
    """How many calls."""
    use_embedded_pair(parser)
    parser.set_defaults(check=check_flags)
    parser.add_argument("--calls", type=int, default=2000, help="how many are sent")
    add_shared(parser, "--json")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Sends them and prints what they took."""
    found = conditions()
    result = measure_calls(flags.calls)
    print_result(console, result)
    return finish(flags, "hosts", found, result)


def print_result(console: Console, result: HostsRecord) -> None:
    """In one line."""
    console.print(
        f"a call of {result.bytes} bytes arrives after {result.median_us:.0f} us (5% to 95%: "
        f"{result.p5_us:.0f} to {result.p95_us:.0f}); sending takes {result.send_us:.0f} us; two "
        f"bare sockets take {result.sockets_us:.0f} us; {result.calls} calls, at most "
        f"{MOST_US:.0f} us allowed; a question to a process with devices is answered after "
        f"{result.answer_us:.0f} us ({result.answer_p5_us:.0f} to {result.answer_p95_us:.0f})"
    )


def measure_calls(calls: int) -> HostsRecord:
    """Starts a follower in a process of its own and sends it so many calls."""
    from serve.hosts.lead import Leader  # Needs the extra hosts.
    from serve.hosts.meet import gather
    from serve.hosts.messages import Listener

    with TemporaryDirectory() as folder:
        hosts = _local_hosts(Path(folder) / "key")
        with _other(_follow, hosts, calls) as arrived:
            listener = Listener(hosts)
            leader = Leader(listener, gather(listener.socket, hosts, {}, _nothing), _nothing)
            sends = [_send(leader.send) for _ in range(calls)]
            arrivals: list[int] = arrived.recv()
            leader.stop()
        sending = _percentiles(sends)[0], _percentiles(_between_bare_sockets(hosts, calls))[0]
        driven = driving(hosts)
        with _other(answer, driven, calls):
            answers = ask(driven, calls, EVERY_S)
    return HostsRecord(calls, CALL_BYTES, *_percentiles(arrivals), *sending, *_percentiles(answers))


def _between_bare_sockets(hosts: HostOptions, calls: int) -> list[int]:
    """Nanoseconds until each call arrived."""
    from serve.hosts.messages import Listener

    with _other(_hear, hosts, calls) as arrived:
        listener = Listener(hosts)
        route, _ = listener.socket.recv_multipart()

        def send(call: bytes) -> None:
            listener.socket.send_multipart([route, call])

        for _ in range(calls):
            _send(send)
        arrivals: list[int] = arrived.recv()
        listener.close()
    return arrivals


@contextmanager
def _other(run: Callable[..., None], hosts: HostOptions, calls: int) -> Iterator[Connection]:
    """Another process while it hears calls; when each arrived comes over the connection."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    spawn = multiprocessing.get_context("spawn")
    other = spawn.Process(target=run, args=(hosts, theirs, calls), daemon=True)
    other.start()
    yield ours
    other.join()


def _send(send: Callable[[bytes], None]) -> int:
    """Nanoseconds that a send took."""
    began = time.monotonic_ns()
    send(_SENT.pack(began) + bytes(CALL_BYTES - _SENT.size))
    took = time.monotonic_ns() - began
    time.sleep(EVERY_S)
    return took


def _follow(hosts: HostOptions, answer: Connection, calls: int) -> None:
    from serve.hosts.follow import Follower
    from serve.hosts.meet import join
    from serve.hosts.messages import connect

    own = replace(hosts, process_id=1)
    dealer = connect(own)
    follower = Follower(dealer, join(dealer, own, {}), _nothing)
    _note_arrivals(follower.calls(), answer, calls)


def _hear(hosts: HostOptions, answer: Connection, calls: int) -> None:
    from serve.hosts.messages import connect

    own = replace(hosts, process_id=1)
    dealer = connect(own)
    dealer.connect(f"tcp://{own.calls_at}")
    dealer.send(b"")
    _note_arrivals((dealer.recv() for _ in range(calls)), answer, calls)


def _note_arrivals(heard: Iterable[Any], answer: Connection, calls: int) -> None:
    """heard: calls, as bytes."""
    arrivals: list[int] = []
    for call in heard:
        now = time.monotonic_ns()
        arrivals.append(now - _SENT.unpack_from(call)[0])
        if len(arrivals) == calls:
            answer.send(arrivals)


def _local_hosts(key: Path) -> HostOptions:
    """Process 0 of two, on a free port."""
    key.touch(0o600)
    key.write_text(os.urandom(32).hex())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return HostOptions(("127.0.0.1", port), port, 2, 0, key)


def _percentiles(nanoseconds: Sequence[int]) -> tuple[float, float, float]:
    """Median, 5% and 95%, in microseconds."""
    cuts = quantiles((n / 1000 for n in nanoseconds), n=20)
    return round(cuts[9], 1), round(cuts[0], 1), round(cuts[18], 1)


def _nothing(_: str) -> None:
    """Says nothing."""
