"""Random traffic with every feature on, hang-ups and signals, then a check for leaks.

Two servers run: one with few pages and with host memory and a disk below them, and one of two
replicas. Clients of four protocols send texts, pictures, tools and grammars and continue stored
responses; some disconnect early or send invalid requests. Signals stop a server for up to a second
and kill its processes that render chats, read pictures or compile grammars. Both servers are
examined while idle, once caches and allocators have filled and again at the end.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack

from rich.console import Console

from convert.command_line.options import COUNT, number
from eagle3_tools.bench.common.command import finish
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.common.flags import add_shared, use_embedded_pair
from eagle3_tools.bench.common.held_out import user_prompts
from eagle3_tools.bench.load.http_client import Address
from eagle3_tools.bench.load.random_requests import PROTOCOLS, RequestSource
from eagle3_tools.bench.load.server_process import serving
from eagle3_tools.bench.load.soak_client import SoakClient
from eagle3_tools.bench.load.soak_record import Latency, Outcomes, SoakRecord, percentiles, total
from eagle3_tools.bench.load.soak_server import SoakServer
from serve.pair.notices import Notify

WARM_UP_SHARE, WARM_UP_S = 0.3, 1200.0
"""Part of the run in which caches and allocators fill: this fraction, at most this many seconds."""
REPLICAS = ("--data-parallel-size", "2", "--enable-expert-parallel")
TWO_DEVICES = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=2"}
SIGNAL_INTERVAL_S = 5.0
IDLE_S = 3.0
"""Time for a server to notice that its clients have gone."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    use_embedded_pair(parser)
    long_enough = number(float, "a number, 1 or more", lambda seconds: seconds >= 1)
    parser.add_argument("--seconds", type=long_enough, default=600.0, help="duration of the run")
    parser.add_argument(
        "--concurrency", type=COUNT, default=20, metavar="N", help="concurrent clients"
    )
    parser.add_argument(
        "--pages",
        type=COUNT,
        default=129,
        metavar="N",
        help="pages of each KV cache; few pages force preemptions",
    )
    add_shared(parser, "--prompts", default=20)
    add_shared(parser, "--json")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Load two servers for minutes or hours; return 1 if something leaked or failed."""
    common = ["--demo-vision", "--num-gpu-blocks-override", f"{flags.pages}"]
    with ExitStack() as stack:
        pages = stack.enter_context(tempfile.TemporaryDirectory())
        tiers = ["--kv-offloading-size", "0.02", "--kv-offloading-dir", pages]
        tiers += ["--kv-offloading-dir-size", "0.1"]
        starts = (("tiers", tiers, {}), ("replicas", REPLICAS, TWO_DEVICES))
        servers = []
        for name, own, environment in starts:
            started = serving([*common, *own], environment=environment)
            process, url = stack.enter_context(started)
            servers.append(SoakServer(name, process, Address.of(url)))
        result = asyncio.run(_soak(flags, servers, Console(stderr=True).print))
    print_result(console, result)
    return finish(flags, "soak", conditions(), result)


def print_result(console: Console, result: SoakRecord) -> None:
    console.print(f"{result.seconds:.0f} s, {result.concurrency} clients, signals {result.signals}")
    for row, outcomes in sorted(result.outcomes.items()):
        counts = ", ".join(f"{count} {kind}" for kind, count in sorted(outcomes.items()))
        console.print(f"{row}: {counts}")
    for name, quarters in result.latencies.items():
        console.print(f"{name}, by quarter: {', '.join(f'{q:.2f} s' for q in quarters)}")
    for server in result.servers:
        console.print(f"{server.name}: before {server.before}")
        console.print(f"{server.name}: after {server.after}")
        console.print(
            f"{server.name}: memory {100 * server.memory_growth:+.1f}%, {server.preemptions} "
            f"preemptions, {server.tiers}, exit status {server.exit_status}"
        )
    console.print("\n".join(result.faults) or "nothing leaked")


async def _soak(flags: argparse.Namespace, servers: list[SoakServer], notify: Notify) -> SoakRecord:
    source, outcomes = RequestSource(user_prompts(flags.prompts)), Outcomes(Counter)
    signals, latencies = Counter[str](), list[Latency]()
    paths = list(PROTOCOLS)
    clients = [
        SoakClient(paths[i % len(paths)], servers[i // len(paths) % 2].address, source, i)
        for i in range(flags.concurrency)
    ]
    start = time.monotonic()
    warm_up = min(WARM_UP_SHARE * flags.seconds, WARM_UP_S)
    for seconds in (warm_up, flags.seconds - warm_up):
        deadline = time.monotonic() + seconds
        latencies.clear()
        for server in servers:
            server.memory_mib.clear()
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(client.load(deadline, outcomes, latencies))
            group.create_task(_signal(servers, deadline, signals))
            group.create_task(_watch(servers, deadline, outcomes, notify))
        await _empty(servers, clients, source)
        for server in servers:
            await server.examine()
    return SoakRecord(
        time.monotonic() - start,
        flags.concurrency,
        {row: dict(counts) for row, counts in outcomes.items()},
        dict(signals),
        percentiles(latencies),
        [await server.end() for server in servers],
    )


async def _empty(
    servers: list[SoakServer], clients: list[SoakClient], source: RequestSource
) -> None:
    """Delete what clients stored, start processes again that signals ended, and await idleness."""
    async with asyncio.TaskGroup() as group:
        for client in clients:
            group.create_task(client.delete_stored())
        for server in servers:
            group.create_task(server.use_every_feature(source))
    await asyncio.sleep(IDLE_S)


async def _signal(servers: list[SoakServer], deadline: float, signals: Counter[str]) -> None:
    rng = random.Random(0)
    while (left := deadline - time.monotonic()) > 0:
        await asyncio.sleep(min(left, rng.expovariate(1 / SIGNAL_INTERVAL_S)))
        server = rng.choice(servers)
        signals[await server.signal(rng)] += 1


async def _watch(
    servers: list[SoakServer], deadline: float, outcomes: Outcomes, notify: Notify
) -> None:
    for second in range(10**9):
        if (left := deadline - time.monotonic()) <= 0:
            return
        memory = [server.sample_memory() for server in servers]
        if second % 3 == 0:
            shown = ", ".join(f"{mib:.0f}" for mib in memory)
            notify(f"{left:4.0f} s left, {shown} MiB, {total(outcomes)}")
        await asyncio.sleep(10)
