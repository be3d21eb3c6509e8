"""Requests as they come to a server: so many at a time, all at once or at random moments."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from eagle3_tools.bench.load.openai_server import Outcome, Server
from eagle3_tools.bench.load.prompts import Prompt


@dataclass(frozen=True)
class Traffic:
    """What became of the requests, in their order, and when: seconds since 1970, and seconds.
    late: by how many seconds each was begun after its moment."""

    outcomes: list[Outcome]
    started: float
    duration: float
    late: list[float]


def arrival_times(count: int, rate: float, seed: int = 0) -> list[float]:
    """Seconds from the first of a Poisson process with this rate; inf: all at once."""
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
    """Sends every prompt, at most `concurrency` of them under way.

    rate: requests a second that arrive as a Poisson process; inf: all are there at once. A request
    that waits for its turn has not started: its times begin when it is sent.
    """
    gate = asyncio.Semaphore(concurrency)
    moments = arrival_times(len(prompts), rate, seed)

    late = [0.0] * len(prompts)

    async def one(number: int, prompt: Prompt) -> Outcome:
        late[number] = time.perf_counter() - start - moments[number]
        async with gate:
            outcome = await server.answer(prompt)
        on_outcome(outcome)
        return outcome

    started, start = time.time(), time.perf_counter()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for number, (prompt, moment) in enumerate(zip(prompts, moments, strict=True)):
            if (wait := start + moment - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            tasks.append(group.create_task(one(number, prompt)))
    duration = time.perf_counter() - start
    return Traffic([task.result() for task in tasks], started, duration, late)


async def warm_up(server: Server, prompt: Prompt, count: int, concurrency: int) -> None:
    """Sends one prompt `count` times; raises OSError with the reason when all of them fail."""
    outcomes = (await send(server, [prompt] * count, concurrency)).outcomes
    if outcomes and all(outcome.error for outcome in outcomes):
        raise OSError(f"every warm-up request failed: {outcomes[0].error}")
