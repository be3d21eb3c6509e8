"""Throughput over concurrency: k chosen by the engine beside k = 0, a fixed k, and no draft.

One server a side, all on one core, the client on another. At every load the sides take turns, so
that a machine that slows down slows all of them; two sides are the same, and what they differ by
is the noise.
"""

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field

import httpx

from serve.bench.server_process import metric, serving, wait_ready
from serve.bench.spread import Spread

FLOOR = 0.97
"""What the chosen k must reach of the better of k = 0 and the fixed k, noise aside."""
READY_TIMEOUT_S = 1800.0
ANSWER_TOKENS = 96
ADAPTIVE, FIXED, AGAIN, PLAIN, ALONE = "adaptive", "fixed", "fixed again", "k = 0", "no draft"

Say = Callable[[str], None]


@dataclass(frozen=True)
class LoadResult:
    """One concurrency. tokens_per_s: of all answers, by side.

    share: adaptive over the better of fixed and k = 0, medians. noise: how far the medians of the
    two identical sides lie apart. plain_share: k = 0 with the draft loaded over no draft.
    mean_k: drafts a round of a sequence that adaptive chose. different: answers that were not the
    same on every side.
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
    """All loads. requests: of one run of one side at concurrency c: the larger of it and 32c."""

    num_speculative_tokens: int
    repetitions: int
    requests: int
    client_core: int | None
    loads: list[LoadResult]

    @property
    def holds(self) -> bool:
        """Whether every load does."""
        return all(load.holds for load in self.loads)


@dataclass
class Side:
    """One server, and what was found there. runs: tokens a second. answers: by prompt."""

    client: httpx.AsyncClient
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
        text = (await self.client.get("/metrics")).text
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
        response = await self.client.post("/v1/chat/completions", json=body)
        found = response.raise_for_status().json()
        self.answers[prompt] = found["choices"][0]["message"]["content"]
        return found["usage"]["completion_tokens"]


def server_flags(num_speculative_tokens: int, most: int) -> dict[str, list[str]]:
    """The flags of each side."""

    def speculation(**keys: object) -> list[str]:
        keys = {"num_speculative_tokens": num_speculative_tokens} | keys
        return ["--speculative-config", json.dumps(keys)]

    sides = {
        ADAPTIVE: [*speculation(), "--adaptive"],
        FIXED: speculation(),
        AGAIN: speculation(),
        PLAIN: speculation(num_speculative_tokens_per_batch_size=[[1, most, 0]]),
        ALONE: speculation(num_speculative_tokens=0),
    }
    # The same prompts come again and again; every time they are to be run.
    shared = ["--demo", "--max-num-seqs", f"{most}", "--no-enable-prefix-caching"]
    return {name: [*shared, *flags] for name, flags in sides.items()}


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
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=600))
            for name, url in urls.items()
        }
        for concurrency in concurrencies:
            count = max(requests, 32 * concurrency)
            asked = list(itertools.islice(itertools.cycle(prompts), count))
            sides = {name: Side(client) for name, client in clients.items()}
            await _measure_load(sides, asked, concurrency, repetitions)
            loads.append(load_result(concurrency, sides))
            shown = ", ".join(f"{name} {rate.median:.0f}" for name, rate in rates(sides).items())
            say(f"concurrency {concurrency}: tokens/s {shown}")
    return loads


async def _measure_load(
    sides: dict[str, Side], prompts: Sequence[str], concurrency: int, repetitions: int
) -> None:
    """One run of every side that does not count, in which k is learnt; then in turn."""
    for side in sides.values():
        await side.run(prompts, concurrency)
        side.runs.clear()
    before = await sides[ADAPTIVE].drafted()
    order = deque(sides.values())
    for _ in range(repetitions):
        for side in order:
            await side.run(prompts, concurrency)
        order.rotate()
    after = await sides[ADAPTIVE].drafted()
    sides[ADAPTIVE].mean_k = (after[0] - before[0]) / (after[1] - before[1])


def rates(sides: dict[str, Side]) -> dict[str, Spread]:
    """Tokens a second of each side."""
    return {name: Spread.of(side.runs, rates=True) for name, side in sides.items()}


def load_result(concurrency: int, sides: dict[str, Side]) -> LoadResult:
    """The ratios of medians."""
    found = rates(sides)
    median = {name: rate.median for name, rate in found.items()}
    answers = [side.answers for side in sides.values()]
    return LoadResult(
        concurrency,
        found,
        share=median[ADAPTIVE] / max(median[FIXED], median[PLAIN]),
        noise=abs(median[FIXED] / median[AGAIN] - 1),
        plain_share=median[PLAIN] / median[ALONE],
        mean_k=sides[ADAPTIVE].mean_k,
        different=sum(len({a[prompt] for a in answers}) > 1 for prompt in answers[0]),
    )
