"""The same requests to an engine in this process and to a server of the same engine."""

import asyncio
import os
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from eagle3_jax.engine import Request
from eagle3_jax.sampling.params import SamplingParams
from serve.bench.load.openai_server import Server
from serve.bench.load.prompts import Prompt
from serve.bench.load.traffic import arrival_times, send
from serve.engine.messages import EngineLike

ANSWER_TOKENS = 96
OFFLINE, AGAIN, HTTP = "offline", "offline again", "HTTP"


@dataclass(frozen=True)
class Demand:
    """How requests come: from clients that ask again when they have their answer or, with a rate,
    at random moments, so many a second, whoever is under way."""

    clients: int
    rate: float | None = None

    def __str__(self) -> str:
        return f"{self.clients} clients" if self.rate is None else f"{self.rate:.1f} a second"


@dataclass
class Runs:
    """One side at one load: tokens a second of each run, seconds to the first token of each
    request."""

    tokens_per_s: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)


class Cores(NamedTuple):
    """Where engines compute, and where HTTP and the client run; None where no core can be had."""

    engine: int | None = None
    client: int | None = None


def move(core: int | None, pid: int = 0) -> None:
    """Puts the calling thread, or the main thread of a process, on a core."""
    if core is not None:
        os.sched_setaffinity(pid, {core})


@dataclass(frozen=True)
class Sides:
    """The engine here and the server."""

    engine: EngineLike
    server: Server
    cores: Cores

    def run(self, name: str, prompts: Sequence[tuple[list[int], Prompt]], demand: Demand) -> Runs:
        """Answers all prompts once on one side."""
        if name == HTTP:
            move(self.cores.client)
            return _over_http(self.server, [prompt for _, prompt in prompts], demand)
        move(self.cores.engine)
        return offline(self.engine, [token_ids for token_ids, _ in prompts], demand)


def _over_http(server: Server, prompts: Sequence[Prompt], demand: Demand) -> Runs:
    if demand.rate is None:
        traffic = asyncio.run(send(server, prompts, demand.clients))
    else:
        traffic = asyncio.run(send(server, prompts, len(prompts), rate=demand.rate))
    if errors := [outcome.error for outcome in traffic.outcomes if outcome.error]:
        raise OSError(f"{len(errors)} requests failed: {errors[0]}")
    tokens = sum(outcome.completion_tokens or 0 for outcome in traffic.outcomes)
    waited = [0.0] * len(prompts) if demand.rate is None else traffic.late
    ttfts = [late + outcome.ttft for late, outcome in zip(waited, traffic.outcomes, strict=True)]
    return Runs([tokens / traffic.duration], ttfts)


def offline(engine: EngineLike, prompts: Sequence[list[int]], demand: Demand) -> Runs:
    """Drives an engine as clients load a server: a prompt follows each that has its answer, or
    comes at its moment, from which its time counts though a round is under way."""
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    moments = arrival_times(len(prompts), demand.rate) if demand.rate else [0.0] * len(prompts)
    waiting = deque(
        (moment, Request(f"{i}", list(token_ids), sampling))
        for i, (moment, token_ids) in enumerate(zip(moments, prompts, strict=True))
    )
    most = demand.clients if demand.rate is None else len(prompts)
    asked_at: dict[str, float] = {}
    ttfts: list[float] = []
    tokens = under_way = 0
    start = time.perf_counter()
    while waiting or under_way:
        now = time.perf_counter() - start
        while waiting and under_way < most and waiting[0][0] <= now:
            moment, request = waiting.popleft()
            asked_at[request.request_id] = now if demand.rate is None else moment
            engine.add(request)
            under_way += 1
        if not under_way:
            time.sleep(waiting[0][0] - now)
            continue
        for output in engine.step():
            tokens += len(output.token_ids)
            if output.token_ids and (asked := asked_at.pop(output.request_id, None)) is not None:
                ttfts.append(time.perf_counter() - start - asked)
            under_way -= output.finish_reason is not None
    return Runs([tokens / (time.perf_counter() - start)], ttfts)
