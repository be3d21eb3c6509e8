"""Random traffic on a real server process, then a check for leaks.

Clients stream or not, sample or not, disconnect early, and send invalid requests, while the page
pool is small enough for preemptions. Afterwards no request may run or wait and no page may be in
use. Resident memory and open files must not have grown since the warm-up. With KV offloading, the
host slots are few enough to be reused many times.
"""

import argparse
import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from eagle3_tools.bench.common.command import finish
from eagle3_tools.bench.common.conditions import conditions, memory_mib
from eagle3_tools.bench.common.flags import add_shared, use_embedded_pair
from eagle3_tools.bench.common.held_out import user_prompts
from eagle3_tools.bench.load.http_client import Address, exchange, request
from eagle3_tools.bench.load.server_process import metric, serving
from serve.pair.notices import Notify

REQUEST_TIMEOUT_S = 120.0
WARM_UP_SHARE = 0.3
"""Fraction of the run in which allocators fill. Memory is compared after it."""
MEMORY_GROWTH = 0.05
REFUSED = (
    {"temperature": -1},
    {"max_tokens": 10**6},
    {"model": "no-such-model"},
    {"logit_bias": {"1": 5}},
)
GAUGES = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


@dataclass(frozen=True)
class SoakRecord:
    """Outcomes by kind, gauges after the last request, memory in MiB.

    `open_files` are the server's, idle after its first requests and at the end. `tiers` has usage
    at the end and tokens loaded from the host tier and, with a directory, the disk tier; none may
    be 0.
    """

    seconds: float
    concurrency: int
    outcomes: dict[str, int]
    gauges: dict[str, float]
    preemptions: int
    memory_mib: list[float]
    memory_growth: float
    open_files: list[int]
    tiers: dict[str, float]

    @property
    def files_growth(self) -> int:
        """Open files after the last request minus those before the first."""
        return self.open_files[1] - self.open_files[0]

    @property
    def holds(self) -> bool:
        """True if nothing leaked or failed and every kind of traffic occurred."""
        kinds = ("finished", "hung up", "refused")
        idle = not any(self.gauges.values())
        flat = self.memory_growth <= MEMORY_GROWTH and self.files_growth <= 0
        used = all(self.tiers.values())
        return (
            idle
            and flat
            and used
            and not self.outcomes.get("failed")
            and all(self.outcomes.get(kind) for kind in kinds)
        )


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags: duration, clients and pages."""
    use_embedded_pair(parser)
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the run")
    parser.add_argument(
        "--concurrency", type=int, default=12, metavar="N", help="concurrent clients"
    )
    parser.add_argument(
        "--pages",
        type=int,
        default=65,
        metavar="N",
        help="pages of the KV cache; few pages force preemptions",
    )
    parser.add_argument(
        "--kv-offloading-size",
        type=float,
        metavar="GIB",
        help="host memory below the KV cache; little memory forces evictions there",
    )
    parser.add_argument(
        "--kv-offloading-dir",
        type=Path,
        metavar="DIR",
        help="directory of 0.1 GiB below that host memory",
    )
    add_shared(parser, "--prompts", default=20)
    add_shared(parser, "--json")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Load a server for minutes; return 1 if something leaked or failed."""
    own = ["--demo", "--num-gpu-blocks-override", f"{flags.pages}"]
    if flags.kv_offloading_size:
        own += ["--kv-offloading-size", f"{flags.kv_offloading_size}"]
    if flags.kv_offloading_dir:
        own += ["--kv-offloading-dir", f"{flags.kv_offloading_dir}"]
        own += ["--kv-offloading-dir-size", "0.1"]
    with serving(own) as (process, url):
        result = asyncio.run(_soak(flags, process.pid, Address.of(url), Console(stderr=True).print))
    print_result(console, result)
    return finish(flags, "soak", conditions(), result)


def print_result(console: Console, result: SoakRecord) -> None:
    """Print the outcomes, and the server's state afterwards."""
    outcomes = ", ".join(f"{count} {kind}" for kind, count in sorted(result.outcomes.items()))
    console.print(f"{result.seconds:.0f} s, {result.concurrency} clients: {outcomes}")
    left = ", ".join(f"{name} {value:g}" for name, value in result.gauges.items())
    console.print(f"{result.preemptions} preemptions; afterwards {left}")
    first, last = result.memory_mib[0], result.memory_mib[-1]
    console.print(
        f"memory {first:.0f} MiB at the start, {last:.0f} at the end, "
        f"{100 * result.memory_growth:+.1f}% over the settled part"
    )
    console.print(f"open files {result.open_files[0]} before, {result.open_files[1]} after")
    for name, value in result.tiers.items():
        console.print(f"host memory, {name}: {value:g}")
    console.print("nothing leaked" if result.holds else "SOMETHING LEAKED OR FAILED")


async def _soak(
    flags: argparse.Namespace, pid: int, address: Address, notify: Notify
) -> SoakRecord:
    outcomes, prompts = Counter[str](), user_prompts(flags.prompts)
    # The first requests start the processes that render chats, whose files stay open.
    first = random.Random(-1)
    await asyncio.gather(*(_ask(address, _random_body(prompts, first), None) for _ in range(8)))
    files = [_open_files(pid)]
    start = time.monotonic()
    deadline = start + flags.seconds
    workers = [
        _worker(address, prompts, random.Random(i), deadline, outcomes)
        for i in range(flags.concurrency)
    ]
    memory = asyncio.create_task(_watch_memory(pid, deadline, outcomes, notify))
    await asyncio.gather(*workers)
    samples = await memory
    await asyncio.sleep(2)
    files.append(_open_files(pid))
    metrics = (await request(address, "GET", "/metrics")).text
    settled = samples[int(len(samples) * WARM_UP_SHARE) :]
    return SoakRecord(
        time.monotonic() - start,
        flags.concurrency,
        dict(outcomes),
        {name: metric(metrics, f"vllm:{name}") for name in GAUGES},
        int(metric(metrics, "vllm:num_preemptions_total")),
        [round(sample, 1) for sample in samples],
        max(settled[len(settled) // 2 :]) / max(settled[: len(settled) // 2 + 1]) - 1,
        files,
        _tiers(metrics, flags) if flags.kv_offloading_size else {},
    )


def _open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _tiers(metrics: str, flags: argparse.Namespace) -> dict[str, float]:
    usage, tokens = "eagle3:kv_tier_usage_perc", "eagle3:prompt_tokens_cached_by_tier_total"
    found = {"usage": metric(metrics, usage, tier="host")}
    found["loaded_tokens"] = metric(metrics, "vllm:external_prefix_cache_hits_total")
    if flags.kv_offloading_dir:
        found["disk_usage"] = metric(metrics, usage, tier="disk")
        found["tokens_from_disk"] = metric(metrics, tokens, tier="disk")
    return found


async def _worker(
    address: Address,
    prompts: list[str],
    rng: random.Random,
    deadline: float,
    outcomes: Counter[str],
) -> None:
    while time.monotonic() < deadline:
        body = _random_body(prompts, rng)
        patience = rng.randrange(1, 30) if rng.random() < 0.3 else None
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                outcome = await _ask(address, body, patience)
        except (OSError, EOFError, ValueError):
            outcome = "failed"
        outcomes[outcome] += 1


def _random_body(prompts: list[str], rng: random.Random) -> dict[str, Any]:
    body = {
        "messages": [{"role": "user", "content": rng.choice(prompts)}],
        "max_tokens": rng.randrange(1, 200),
        "temperature": rng.choice((0, 0.6, 1.0)),
        "top_p": rng.choice((1.0, 0.9)),
        "stream": rng.random() < 0.7,
        "n": rng.choice((1, 1, 1, 2)),
        "ignore_eos": rng.random() < 0.3,
    }
    return body | rng.choice(REFUSED) if rng.random() < 0.05 else body


async def _ask(address: Address, body: dict[str, Any], patience: int | None) -> str:
    """Send one request; disconnect after `patience` lines (tenths of a second if not streamed)."""
    timeout = None if body["stream"] or patience is None else patience / 10
    try:
        async with asyncio.timeout(timeout):
            return await _read(address, body, patience)
    except TimeoutError:
        return "hung up"


async def _read(address: Address, body: dict[str, Any], patience: int | None) -> str:
    async with exchange(address, "POST", "/v1/chat/completions", body) as response:
        if 400 <= response.status < 500:
            return "refused"
        if response.status != 200:
            return "failed"
        lines = 0
        async for _ in response.lines():
            lines += 1
            if body["stream"] and lines == patience:
                return "hung up"
    return "finished"


async def _watch_memory(
    pid: int, deadline: float, outcomes: Counter[str], notify: Notify
) -> list[float]:
    samples = []
    while time.monotonic() < deadline:
        samples.append(memory_mib(pid, "VmRSS"))
        if len(samples) % 30 == 1:
            notify(f"{deadline - time.monotonic():4.0f} s left, {samples[-1]:.0f} MiB, {outcomes}")
        await asyncio.sleep(1)
    return samples
