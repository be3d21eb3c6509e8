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
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from rich.console import Console

from serve.bench.common.command import finish
from serve.bench.common.conditions import allowed_cores, conditions, move_host, pin
from serve.bench.common.flags import add_shared, check_drafting, use_embedded_pair
from serve.bench.common.held_out import user_prompts
from serve.bench.common.spread import Spread, in_turn
from serve.bench.load.http_client import Address, request
from serve.bench.load.server_process import metric, serving
from serve.pair.notices import Say
from serve.text_table import text_table

FLOOR = 0.97
"""What the chosen k must reach of the better of k = 0 and the fixed k, noise aside."""
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
    add_shared(parser, "--num-speculative-tokens", help="the fixed k, and the most, 1..8")
    add_shared(parser, "--repetitions")
    add_shared(parser, "--requests", help="of a run; 32 a client if more")
    add_shared(parser, "--concurrency", default=[1, 2, 4, 8, 16], help="clients")
    add_shared(parser, "--prompts", default=8)
    add_shared(parser, "--core", help="the servers' core; default: the last")
    add_shared(parser, "--json")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compares the servers; status 1 where the chosen k is slower than a fixed one."""
    # Before any process is started: they run on the cores that this one may use.
    allowed, say = allowed_cores(), Console(stderr=True).print
    found = conditions(pin(flags.core))
    with ExitStack() as stack:
        urls: dict[str, str] = {}
        for name, own in server_flags(flags.k, max(flags.concurrency)).items():
            say(f"starting the server: {name}")
            _, urls[name] = stack.enter_context(serving(own))
        client_core = move_host(allowed, found.pinned_core)
        loads = asyncio.run(_measure(flags, urls, say))
    result = ChoiceRecord(flags.k, flags.repetitions, flags.requests, client_core, loads)
    found.print_to(console, flags.repetitions)
    print_result(console, result)
    return finish(flags, "choice", found, result)


def print_result(console: Console, result: ChoiceRecord) -> None:
    """Tokens a second of all servers at every load, and what follows from them."""
    title = f"Tokens/s of all clients, greedy, k up to {result.num_speculative_tokens}"
    names = list(result.loads[0].tokens_per_s)
    headings = ("adaptive : best", "noise", "k = 0 : no draft", "mean k", "different")
    table = text_table(title, ("clients", *names, *headings))
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


async def _measure(
    flags: argparse.Namespace, urls: Mapping[str, str], say: Say
) -> list[LoadResult]:
    loads, prompts = [], user_prompts(flags.prompts)
    for concurrency in flags.concurrency:
        count = max(flags.requests, 32 * concurrency)
        asked = list(itertools.islice(itertools.cycle(prompts), count))
        servers = {name: MeasuredServer(Address.of(url)) for name, url in urls.items()}
        await _measure_load(servers, asked, concurrency, flags.repetitions)
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
    for server in in_turn(servers.values(), repetitions):
        await server.run(prompts, concurrency)
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
