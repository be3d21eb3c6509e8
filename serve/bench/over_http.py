"""What HTTP costs: the server's throughput and first tokens beside the same engine's offline.

Both engines compute on one core, HTTP and the client have another. The same prompts go to each in
turn, so many at a time, so that a machine that slows down slows both; offline runs twice, and what
the two differ by is the noise.
"""

import asyncio
import itertools
import json
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from eagle3_jax.engine import Request
from eagle3_jax.sampling_params import SamplingParams
from serve.bench.held_out import HeldOutPrompt
from serve.bench.http_stream import Address
from serve.bench.server_process import serving, wait_ready
from serve.bench.spread import Spread
from serve.bench.sweep.client import Server
from serve.bench.sweep.prompts import Prompt
from serve.bench.sweep.traffic import send
from serve.demo.corpus import Conversation
from serve.engine_thread import EngineLike
from serve.loading import LoadedPair, build_engine

FLOOR = 0.90
"""What HTTP must reach of the offline throughput, noise aside."""
MOST_TTFT_MS = 10.0
"""What it may add to the median time to the first token of a client that is alone. Beside others a
request waits for the round that is under way when it arrives, which is not HTTP's doing: offline
they come between two rounds."""
ALONE, ALONE_REQUESTS = 1, 16
READY_TIMEOUT_S = 1800.0
ANSWER_TOKENS = 96
OFFLINE, AGAIN, HTTP = "offline", "offline again", "HTTP"

Say = Callable[[str], None]


@dataclass
class Runs:
    """One side at one load: tokens a second of each run, seconds to the first token of each
    request."""

    tokens_per_s: list[float] = field(default_factory=list)
    ttfts: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class HttpLoad:
    """One concurrency. share: HTTP over offline, medians of tokens/s. noise: how far the medians
    of the two identical sides lie apart. ttft_ms: medians; ttft_overhead_ms: HTTP less offline."""

    concurrency: int
    tokens_per_s: dict[str, Spread]
    ttft_ms: dict[str, float]
    share: float
    noise: float
    ttft_overhead_ms: float

    @property
    def holds(self) -> bool:
        """Whether HTTP costs no more than it may: alone in time, beside others in throughput."""
        if self.concurrency == ALONE:
            return self.ttft_overhead_ms <= MOST_TTFT_MS
        return self.share >= FLOOR - self.noise


@dataclass(frozen=True)
class HttpRecord:
    """All loads, a client that is alone first. requests: of one run at concurrency c: the larger of
    it and 6c; alone: ALONE_REQUESTS."""

    num_speculative_tokens: int
    answer_tokens: int
    repetitions: int
    requests: int
    engine_core: int | None
    client_core: int | None
    loads: list[HttpLoad]

    @property
    def holds(self) -> bool:
        """Whether every load does."""
        return all(load.holds for load in self.loads)


@dataclass(frozen=True)
class Cores:
    """Where engines compute, and where HTTP and the client run; None where no core can be had."""

    engine: int | None
    client: int | None

    @classmethod
    def of(cls, allowed: Sequence[int]) -> "Cores":
        """The first core for engines, the last for the rest."""
        return cls(allowed[0], allowed[-1]) if allowed else cls(None, None)

    @staticmethod
    def move(core: int | None, pid: int = 0) -> None:
        """Puts the calling thread, or the main thread of a process, on a core."""
        if core is not None:
            os.sched_setaffinity(pid, {core})


def measure_http(
    pair: LoadedPair,
    prompts: Sequence[HeldOutPrompt],
    cores: Cores,
    *,
    num_speculative_tokens: int,
    repetitions: int,
    requests: int,
    concurrencies: Sequence[int],
    say: Say,
) -> HttpRecord:
    """Builds an engine of the embedded pair here and starts a server with the same.

    To be called on the engines' core: XLA's threads stay where they are made. Raises OSError when
    the server does not start.
    """
    k, most = num_speculative_tokens, max(concurrencies)
    longest = max(len(prompt.token_ids) for prompt in prompts) + ANSWER_TOKENS
    asked = [_texted(pair, prompt) for prompt in prompts]
    say("compiling")
    engine = build_engine(
        # As the server: with k = 0 it loads no draft.
        pair if k else replace(pair, draft=None),
        num_speculative_tokens=k,
        max_num_seqs=most,
        max_model_len=longest,
        enable_prefix_caching=False,
    )
    engine.warmup()
    # Only now: it finds the programs that were just compiled.
    say("starting the server")
    with serving(server_flags(k, most, longest)) as (process, url):
        asyncio.run(wait_ready(url, process, READY_TIMEOUT_S))
        # Only the event loop's thread moves: the engine's and XLA's were started before.
        Cores.move(cores.client, process.pid)
        sides = Sides(engine, Server(Address.of(url), "eagle3-demo"), cores)
        loads = [
            _measure_load(sides, prompts, asked, concurrency, repetitions, requests, say)
            for concurrency in (ALONE, *concurrencies)
        ]
    return HttpRecord(k, ANSWER_TOKENS, repetitions, requests, cores.engine, cores.client, loads)


def server_flags(num_speculative_tokens: int, max_num_seqs: int, max_model_len: int) -> list[str]:
    """The command line of a server whose engine is the offline one."""
    speculation = json.dumps({"num_speculative_tokens": num_speculative_tokens})
    sizes = ["--max-num-seqs", f"{max_num_seqs}", "--max-model-len", f"{max_model_len}"]
    # The same prompts come again and again; every time they are to be run.
    return ["--demo", "--speculative-config", speculation, *sizes, "--no-enable-prefix-caching"]


def _texted(pair: LoadedPair, prompt: HeldOutPrompt) -> Prompt:
    conversation: Conversation = prompt.conversation
    tools = list(conversation.tools) or None
    text = pair.tokenizer.apply_chat_template(conversation.prompt, tools=tools)
    return Prompt(text, "", len(prompt.token_ids), ANSWER_TOKENS)


@dataclass(frozen=True)
class Sides:
    """The engine here and the server."""

    engine: EngineLike
    server: Server
    cores: Cores

    def run(self, name: str, prompts: Sequence[tuple[list[int], Prompt]], concurrency: int) -> Runs:
        """Answers all prompts once on one side."""
        if name == HTTP:
            Cores.move(self.cores.client)
            return _over_http(self.server, [prompt for _, prompt in prompts], concurrency)
        Cores.move(self.cores.engine)
        return offline(self.engine, [token_ids for token_ids, _ in prompts], concurrency)


def _measure_load(
    sides: Sides,
    prompts: Sequence[HeldOutPrompt],
    asked: Sequence[Prompt],
    concurrency: int,
    repetitions: int,
    requests: int,
    say: Say,
) -> HttpLoad:
    """One run of either kind that does not count; then all in turn."""
    count = ALONE_REQUESTS if concurrency == ALONE else max(requests, 6 * concurrency)
    pairs = [(held.token_ids, text) for held, text in zip(prompts, asked, strict=True)]
    run = list(itertools.islice(itertools.cycle(pairs), count))
    for name in (OFFLINE, HTTP):
        sides.run(name, run[: 2 * concurrency], concurrency)
    found = {name: Runs() for name in (OFFLINE, HTTP, AGAIN)}
    order = deque(found)
    for _ in range(repetitions):
        for name in order:
            once = sides.run(name, run, concurrency)
            found[name].tokens_per_s += once.tokens_per_s
            found[name].ttfts += once.ttfts
        order.rotate()
    load = http_load(concurrency, found)
    speeds = ", ".join(f"{name} {rate.median:.0f}" for name, rate in load.tokens_per_s.items())
    say(f"concurrency {concurrency}: tokens/s {speeds}")
    return load


def http_load(concurrency: int, found: dict[str, Runs]) -> HttpLoad:
    """The ratios and differences of medians."""
    rates = {name: Spread.of(runs.tokens_per_s) for name, runs in found.items()}
    ttft_ms = {name: 1e3 * median(runs.ttfts) for name, runs in found.items()}
    return HttpLoad(
        concurrency,
        rates,
        ttft_ms,
        share=rates[HTTP].median / rates[OFFLINE].median,
        noise=abs(rates[OFFLINE].median / rates[AGAIN].median - 1),
        ttft_overhead_ms=ttft_ms[HTTP] - ttft_ms[OFFLINE],
    )


def _over_http(server: Server, prompts: Sequence[Prompt], concurrency: int) -> Runs:
    traffic = asyncio.run(send(server, prompts, concurrency))
    if errors := [outcome.error for outcome in traffic.outcomes if outcome.error]:
        raise OSError(f"{len(errors)} requests failed: {errors[0]}")
    tokens = sum(outcome.completion_tokens or 0 for outcome in traffic.outcomes)
    return Runs([tokens / traffic.duration], [outcome.ttft for outcome in traffic.outcomes])


def offline(engine: EngineLike, prompts: Sequence[list[int]], concurrency: int) -> Runs:
    """Drives an engine as clients load a server: a prompt follows each that has its answer."""
    sampling = SamplingParams(temperature=0.0, max_tokens=ANSWER_TOKENS, ignore_eos=True)
    waiting = deque(
        Request(f"{i}", list(token_ids), sampling) for i, token_ids in enumerate(prompts)
    )
    asked_at: dict[str, float] = {}
    ttfts: list[float] = []
    tokens = under_way = 0
    start = time.perf_counter()
    while waiting or under_way:
        while waiting and under_way < concurrency:
            request = waiting.popleft()
            asked_at[request.request_id] = time.perf_counter()
            engine.add(request)
            under_way += 1
        for output in engine.step():
            tokens += len(output.token_ids)
            if output.token_ids and (asked := asked_at.pop(output.request_id, None)) is not None:
                ttfts.append(time.perf_counter() - asked)
            under_way -= output.finish_reason is not None
    return Runs([tokens / (time.perf_counter() - start)], ttfts)
