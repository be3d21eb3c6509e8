"""Throughput over concurrency: k chosen by the engine, k = 0, a fixed k, and no draft.

All servers run on one core, the client on another. At every load they take turns, so
that a machine that slows down slows all of them; two of them are the same, and what they differ by
is the noise.
"""

import argparse
import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console

from serve.bench.common.command import finish
from serve.bench.common.conditions import allowed_cores, conditions, move_host, pin
from serve.bench.common.flags import (
    add_json_flag,
    add_k_flag,
    add_prompts_flag,
    check_drafting,
    use_embedded_pair,
)
from serve.bench.common.held_out import user_prompts
from serve.bench.common.spread import Spread
from serve.bench.common.tables import print_conditions, titled
from serve.bench.load.http_client import Address, request
from serve.bench.load.server_process import metric, serving, wait_ready
from serve.pair.notices import Say

FLOOR = 0.97
"""What the chosen k must reach of the better of k = 0 and the fixed k, noise aside."""
READY_TIMEOUT_S = 1800.0
ANSWER_TOKENS = 96
ADAPTIVE, FIXED, AGAIN, PLAIN, ALONE = "adaptive", "fixed", "fixed again", "k = 0", "no draft"


@dataclass(frozen=True)
class LoadResult:
    """One concurrency. tokens_per_s: of all answers, by server.

    share: adaptive over the better of fixed and k = 0, medians. noise: how far the medians of the
    two identical servers lie apart. plain_share: k = 0 with the draft loaded over no draft.
    mean_k: drafts a round of a sequence that adaptive chose. different: answers that were not the
    same on every server.
    """

    concurrency: int
    tokens_per_s: dict[str, Spread]
    share: float
    noise: float
    plain_share: float
    mean_k: float
    different: int

    @property
    def holds(self) -> bool:
        """Whether adaptive reached FLOOR, give or take the noise."""
        return self.share >= FLOOR - self.noise


@dataclass(frozen=True)
class ChoiceRecord:
    """All loads. requests: of one run of one server at concurrency c: the larger of it and 32c."""

    num_speculative_tokens: int
    repetitions: int
    requests: int
    client_core: int | None
    loads: list[LoadResult]

    @property
    def holds(self) -> bool:
        """Whether every load does."""
        return all(load.holds for load in self.loads)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """k, loads, repetitions and the servers' core."""
    use_embedded_pair(parser)
    parser.set_defaults(check=check_drafting)
    add_k_flag(parser, "the fixed k, and the most, 1..8")
    parser.add_argument("--repetitions", type=int, default=5, metavar="N")
    parser.add_argument(
        "--requests", type=int, default=64, metavar="N", help="of a run; 32 a client if more"
    )
    parser.add_argument(
        "--concurrency", type=int, nargs="+", default=[1, 2, 4, 8, 16], metavar="N", help="clients"
    )
    add_prompts_flag(parser, 8)
    parser.add_argument("--core", type=int, metavar="N", help="the servers' core; the last")
    add_json_flag(parser)


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compares the servers; status 1 where the chosen k is slower than a fixed one."""
    # Before any process is started: they run on the cores that this one may use.
    allowed = allowed_cores()
    found = conditions(pin(flags.core))
    result = measure_choice(
        user_prompts(flags.prompts),
        num_speculative_tokens=flags.k,
        repetitions=flags.repetitions,
        requests=flags.requests,
        concurrencies=flags.concurrency,
        leave_core=lambda: move_host(allowed, found.pinned_core),
        say=Console(stderr=True).print,
    )
    print_conditions(console, found, flags.repetitions)
    print_result(console, result)
    return finish(flags, "choice", found, result)


def print_result(console: Console, result: ChoiceRecord) -> None:
    """Tokens a second of all servers at every load, and what follows from them."""
    table = titled(f"Tokens/s of all clients, greedy, k up to {result.num_speculative_tokens}")
    names = list(result.loads[0].tokens_per_s)
    headings = ("adaptive : best", "noise", "k = 0 : no draft", "mean k", "different")
    for heading in ("clients", *names, *headings):
        table.add_column(heading, justify="right")
    for load in result.loads:
        speeds = (f"{load.tokens_per_s[name].median:.0f}" for name in names)
        ratios = (f"{load.share:.3f}", f"{load.noise:.3f}", f"{load.plain_share:.3f}")
        used = f"{load.mean_k:.2f}"
        table.add_row(f"{load.concurrency}", *speeds, *ratios, used, f"{load.different}")
    console.print(table)
    console.print(
        "adaptive reaches 0.97 of the better of k = 0 and fixed, noise aside, at every load"
        if result.holds
        else "ADAPTIVE IS BELOW 0.97 OF THE BETTER OF k = 0 AND FIXED"
    )


@dataclass
class MeasuredServer:
    """One server, and what was found there. runs: tokens a second. answers: by prompt."""

    address: Address
    runs: list[float] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)
    mean_k: float = 0.0

    async def run(self, prompts: Sequence[str], concurrency: int) -> int:
        """Answers all prompts, so many at a time; returns the tokens of all answers."""
        waiting, counts = iter(prompts), list[int]()

        async def work() -> None:
            for prompt in waiting:
                counts.append(await self._answer(prompt))

        start = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(concurrency)))
        self.runs.append(sum(counts) / (time.perf_counter() - start))
        return sum(counts)

    async def drafted(self) -> tuple[float, float]:
        """Draft tokens made so far, and the rounds of sequences that made them or none."""
        text = (await request(self.address, "GET", "/metrics")).text
        counts = [
            metric(text, "eagle3:spec_decode_rounds_total", drafted=f"{k}")
            for k in range(text.count("eagle3:spec_decode_rounds_total{"))
        ]
        return sum(k * count for k, count in enumerate(counts)), sum(counts)

    async def _answer(self, prompt: str) -> int:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": ANSWER_TOKENS,
        }
        found = (await request(self.address, "POST", "/v1/chat/completions", body)).json()
        self.answers[prompt] = found["choices"][0]["message"]["content"]
        return found["usage"]["completion_tokens"]


def server_flags(num_speculative_tokens: int, most: int) -> dict[str, list[str]]:
    """The flags of each server."""

    def speculation(**keys: object) -> list[str]:
        keys = {"num_speculative_tokens": num_speculative_tokens} | keys
        return ["--speculative-config", json.dumps(keys)]

    speculations = {
        ADAPTIVE: [*speculation(), "--adaptive"],
        FIXED: speculation(),
        AGAIN: speculation(),
        PLAIN: speculation(num_speculative_tokens_per_batch_size=[[1, most, 0]]),
        ALONE: speculation(num_speculative_tokens=0),
    }
    # The same prompts come again and again; every time they are to be run.
    shared = ["--demo", "--max-num-seqs", f"{most}", "--no-enable-prefix-caching"]
    return {name: [*shared, *flags] for name, flags in speculations.items()}


def measure_choice(
    prompts: Sequence[str],
    *,
    num_speculative_tokens: int,
    repetitions: int,
    requests: int,
    concurrencies: Sequence[int],
    leave_core: Callable[[], int | None],
    say: Say,
) -> ChoiceRecord:
    """Starts the servers on the core of the caller, who then leaves it by `leave_core`.

    Raises OSError when a server does not start.
    """
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        for name, flags in server_flags(num_speculative_tokens, max(concurrencies)).items():
            say(f"starting the server: {name}")
            process, urls[name] = stack.enter_context(serving(flags))
            asyncio.run(wait_ready(urls[name], process, READY_TIMEOUT_S))
        core = leave_core()
        loads = asyncio.run(_measure(urls, prompts, repetitions, requests, concurrencies, say))
    return ChoiceRecord(num_speculative_tokens, repetitions, requests, core, loads)


async def _measure(
    urls: dict[str, str],
    prompts: Sequence[str],
    repetitions: int,
    requests: int,
    concurrencies: Sequence[int],
    say: Say,
) -> list[LoadResult]:
    loads = []
    for concurrency in concurrencies:
        count = max(requests, 32 * concurrency)
        asked = list(itertools.islice(itertools.cycle(prompts), count))
        servers = {name: MeasuredServer(Address.of(url)) for name, url in urls.items()}
        await _measure_load(servers, asked, concurrency, repetitions)
        loads.append(load_result(concurrency, servers))
        shown = ", ".join(f"{name} {rate.median:.0f}" for name, rate in rates(servers).items())
        say(f"concurrency {concurrency}: tokens/s {shown}")
    return loads


async def _measure_load(
    servers: dict[str, MeasuredServer], prompts: Sequence[str], concurrency: int, repetitions: int
) -> None:
    """One run of every server that does not count, in which k is learnt; then in turn."""
    for server in servers.values():
        await server.run(prompts, concurrency)
        server.runs.clear()
    before = await servers[ADAPTIVE].drafted()
    order = deque(servers.values())
    for _ in range(repetitions):
        for server in order:
            await server.run(prompts, concurrency)
        order.rotate()
    after = await servers[ADAPTIVE].drafted()
    servers[ADAPTIVE].mean_k = (after[0] - before[0]) / (after[1] - before[1])


def rates(servers: dict[str, MeasuredServer]) -> dict[str, Spread]:
    """Tokens a second of each server."""
    return {name: Spread.of(server.runs, rates=True) for name, server in servers.items()}


def load_result(concurrency: int, servers: dict[str, MeasuredServer]) -> LoadResult:
    """The ratios of medians."""
    found = rates(servers)
    median = {name: rate.median for name, rate in found.items()}
    answers = [server.answers for server in servers.values()]
    return LoadResult(
        concurrency,
        found,
        share=median[ADAPTIVE] / max(median[FIXED], median[PLAIN]),
        noise=abs(median[FIXED] / median[AGAIN] - 1),
        plain_share=median[PLAIN] / median[ALONE],
        mean_k=servers[ADAPTIVE].mean_k,
        different=sum(len({a[prompt] for a in answers}) > 1 for prompt in answers[0]),
    )
