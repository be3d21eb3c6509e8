"""The cost of HTTP: throughput and first tokens of a server and of the same engine offline.

Both engines compute on one core, HTTP and the client have another. The same prompts go to each in
turn, by so many clients or at the same random moments, so that a machine that slows down slows
both; offline runs twice, and what the two differ by is the noise.
"""

import argparse
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from rich.console import Console

from eagle3_jax.engine import EngineConfig
from serve.bench.common.command import finish, given_pair
from serve.bench.common.conditions import allowed_cores, conditions, pin
from serve.bench.common.flags import add_shared, use_embedded_pair
from serve.bench.common.held_out import HeldOutPrompt, held_out
from serve.bench.common.spread import Spread, in_turn
from serve.bench.load.engine_and_server import (
    AGAIN,
    ANSWER_TOKENS,
    HTTP,
    OFFLINE,
    Cores,
    Demand,
    Runs,
    Sides,
    move,
)
from serve.bench.load.http_client import Address
from serve.bench.load.openai_server import Server
from serve.bench.load.prompts import Prompt
from serve.bench.load.server_process import serving
from serve.pair.loading import LoadedPair, build_engine
from serve.pair.notices import Say
from serve.text_table import text_table

FLOOR = 0.90
"""What HTTP must reach of the offline throughput, noise aside."""
MOST_TTFT_MS = 10.0
"""What it may add to the median time to the first token."""
BUSY = 0.7
"""Requests that come at random moments: as many as make this share of the offline throughput."""
ALONE_REQUESTS = 16
SIDES = (OFFLINE, AGAIN, HTTP)
HEADINGS = (*SIDES, "HTTP : offline", "noise", "TTFT offline, ms", "TTFT HTTP, ms", "overhead, ms")


@dataclass(frozen=True)
class HttpLoad:
    """One demand. share: HTTP over offline, medians of tokens/s. noise: how far the medians of the
    two identical sides lie apart. ttft_ms: medians; ttft_overhead_ms: HTTP less offline."""

    demand: Demand
    tokens_per_s: dict[str, Spread]
    ttft_ms: dict[str, float]
    share: float
    noise: float
    ttft_overhead_ms: float

    @property
    def judges_time(self) -> bool:
        """Whether it shows what HTTP adds to the first token. Clients that ask again when they have
        an answer do so between two rounds offline, and during one over HTTP: with several of them
        the difference holds a round, which is not HTTP's doing."""
        return self.demand.rate is not None or self.demand.clients == 1

    @property
    def holds(self) -> bool:
        """Whether HTTP costs no more than it may."""
        if self.judges_time:
            return self.ttft_overhead_ms <= MOST_TTFT_MS
        return self.share >= FLOOR - self.noise


@dataclass(frozen=True)
class HttpRecord:
    """All loads, a client that is alone first. requests: of one run with c clients: the larger of
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


def add_flags(parser: argparse.ArgumentParser) -> None:
    """k, loads and repetitions."""
    use_embedded_pair(parser)
    add_shared(parser, "--num-speculative-tokens", help="drafts a round, 0..8")
    add_shared(parser, "--repetitions")
    add_shared(parser, "--requests", help="of a run; 6 a client if more")
    add_shared(parser, "--concurrency", default=[8, 32], help="clients; one alone comes first")
    add_shared(parser, "--prompts", default=8)
    add_shared(parser, "--json")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Compares a server with its engine offline; status 1 where HTTP costs more than it may."""
    # Before JAX starts its threads, here and in the server: they compute on the engines' core.
    allowed = allowed_cores()
    cores = Cores(allowed[0], allowed[-1]) if allowed else Cores()
    found = conditions(pin(cores.engine))
    result = measure_http(flags, given_pair(flags), cores, Console(stderr=True).print)
    found.print_to(console, flags.repetitions)
    print_result(console, result)
    return finish(flags, "http", found, result)


def print_result(console: Console, record: HttpRecord) -> None:
    """A line for each load, then the verdict."""
    cores = f"engines on core {record.engine_core}, HTTP and client on {record.client_core}"
    k = record.num_speculative_tokens
    title = f"Tokens/s, greedy, k={k}, answers of {record.answer_tokens} tokens; {cores}"
    table = text_table(title, ("requests", *HEADINGS))
    for load in record.loads:
        speeds = (f"{load.tokens_per_s[name].median:.0f}" for name in SIDES)
        times = (f"{load.ttft_ms[name]:.1f}" for name in (OFFLINE, HTTP))
        ratios = (f"{load.share:.3f}", f"{load.noise:.3f}")
        overhead = f"{load.ttft_overhead_ms:+.1f}"
        table.add_row(f"{load.demand}", *speeds, *ratios, *times, overhead)
    console.print(table)
    for load in record.loads:
        promise = (
            f"adds at most {MOST_TTFT_MS:g} ms to the median first token"
            if load.judges_time
            else f"reaches {FLOOR:g} of the offline throughput, noise aside"
        )
        verdict = "HOLDS" if load.holds else "DOES NOT HOLD"
        console.print(f"{load.demand}: HTTP {promise}: {verdict}")


def measure_http(flags: argparse.Namespace, pair: LoadedPair, cores: Cores, say: Say) -> HttpRecord:
    """Builds an engine of the embedded pair here and starts a server with the same.

    To be called on the engines' core: XLA's threads stay where they are made. Raises OSError when
    the server does not start.
    """
    k, most, prompts = flags.k, max(flags.concurrency), held_out(pair.tokenizer, flags.prompts)
    longest = max(len(prompt.token_ids) for prompt in prompts) + ANSWER_TOKENS
    pairs = [(prompt.token_ids, _texted(pair, prompt)) for prompt in prompts]
    say("compiling")
    # As the server: with k = 0 it loads no draft.
    served = pair if k else replace(pair, draft=None)
    engine = build_engine(served, EngineConfig(k, longest, most, enable_prefix_caching=False))
    engine.warmup()
    # Only now: it finds the programs that were just compiled.
    say("starting the server")
    with serving(server_flags(k, most, longest)) as (process, url):
        # Only the event loop's thread moves: the engine's and XLA's were started before.
        move(cores.client, process.pid)
        sides = Sides(engine, Server(Address.of(url), "eagle3-demo"), cores)

        def load(demand: Demand, requests: int) -> HttpLoad:
            run = list(itertools.islice(itertools.cycle(pairs), requests))
            return _measure_load(sides, run, demand, flags.repetitions, say)

        loads = [load(Demand(1), ALONE_REQUESTS)]
        for clients in flags.concurrency:
            count = max(flags.requests, 6 * clients)
            loads.append(load(Demand(clients), count))
            rate = BUSY * loads[-1].tokens_per_s[OFFLINE].median / ANSWER_TOKENS
            loads.append(load(Demand(clients, rate), count))
    return HttpRecord(k, ANSWER_TOKENS, flags.repetitions, flags.requests, *cores, loads)


def server_flags(num_speculative_tokens: int, max_num_seqs: int, max_model_len: int) -> list[str]:
    """The command line of a server whose engine is the offline one."""
    speculation = json.dumps({"num_speculative_tokens": num_speculative_tokens})
    sizes = ["--max-num-seqs", f"{max_num_seqs}", "--max-model-len", f"{max_model_len}"]
    # The same prompts come again and again; every time they are to be run.
    return ["--demo", "--speculative-config", speculation, *sizes, "--no-enable-prefix-caching"]


def _texted(pair: LoadedPair, prompt: HeldOutPrompt) -> Prompt:
    tools = list(prompt.conversation.tools) or None
    text = pair.tokenizer.apply_chat_template(prompt.conversation.prompt, tools=tools)
    return Prompt(text, "", len(prompt.token_ids), ANSWER_TOKENS)


def _measure_load(
    sides: Sides,
    run: Sequence[tuple[list[int], Prompt]],
    demand: Demand,
    repetitions: int,
    say: Say,
) -> HttpLoad:
    """One run of either kind that does not count; then all in turn."""
    for name in (OFFLINE, HTTP):
        sides.run(name, run[: 2 * demand.clients], demand)
    found = {name: Runs() for name in (OFFLINE, HTTP, AGAIN)}
    for name in in_turn(found, repetitions):
        once = sides.run(name, run, demand)
        found[name].tokens_per_s += once.tokens_per_s
        found[name].ttfts += once.ttfts
    load = http_load(demand, found)
    speeds = ", ".join(f"{name} {rate.median:.0f}" for name, rate in load.tokens_per_s.items())
    say(f"{demand}: tokens/s {speeds}; HTTP adds {load.ttft_overhead_ms:.1f} ms to first tokens")
    return load


def http_load(demand: Demand, found: dict[str, Runs]) -> HttpLoad:
    """The ratios and differences of medians."""
    rates = {name: Spread.of(runs.tokens_per_s, rates=True) for name, runs in found.items()}
    ttft_ms = {name: 1e3 * median(runs.ttfts) for name, runs in found.items()}
    return HttpLoad(
        demand,
        rates,
        ttft_ms,
        share=rates[HTTP].median / rates[OFFLINE].median,
        noise=abs(rates[OFFLINE].median / rates[AGAIN].median - 1),
        ttft_overhead_ms=ttft_ms[HTTP] - ttft_ms[OFFLINE],
    )
