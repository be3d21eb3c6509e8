"""Send requests to a server with limited concurrency, all at once or at Poisson arrival times."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3_tools.bench.load.openai_server import Outcome, Server
from eagle3_tools.bench.load.prompts import Prompt


@dataclass(frozen=True)
class Traffic:
    """Outcomes in request order, `started` in seconds since 1970, `duration` in seconds."""

    outcomes: list[Outcome]
    started: float
    duration: float


def arrival_times(count: int, rate: float, seed: int = 0) -> list[float]:
    """Return arrival times of a Poisson process in seconds after the first; inf: all at once."""
    gaps = np.random.default_rng(seed).exponential(1 / rate, count)
    return (np.cumsum(gaps) - gaps[:1]).tolist()


async def send(
    server: Server,
    prompts: Sequence[Prompt],
    concurrency: int,
    *,
    rate: float = float("inf"),
    seed: int = 0,
    on_outcome: Callable[[Outcome], None] = lambda _: None,
) -> Traffic:
    """Send every prompt, at most `concurrency` at a time.

    `rate` is in requests per second of a Poisson process; inf: all arrive at once. A request's
    times begin when it is sent, not while it waits for others to finish.
    """
    gate = asyncio.Semaphore(concurrency)

    async def one(prompt: Prompt) -> Outcome:
        async with gate:
            outcome = await server.answer(prompt)
        on_outcome(outcome)
        return outcome

    started, start = time.time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for prompt, moment in zip(prompts, arrival_times(len(prompts), rate, seed), strict=True):
            if (wait := start + moment - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(group.create_task(one(prompt)))
    duration = time.perf_counter() - start
    return Traffic([task.result() for task in tasks], started, duration)


async def warm_up(server: Server, prompt: Prompt, count: int, concurrency: int) -> None:
    """Send one prompt `count` times; raise OSError if all of the requests fail."""
    outcomes = (await send(server, [prompt] * count, concurrency)).outcomes
    if outcomes and all(outcome.error for outcome in outcomes):
        raise OSError(f"every warm-up request failed: {outcomes[0].error}")
