"""Whole answers of the embedded pair over HTTP, with its draft and without, in turn."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from eagle3_tools.bench.common.held_out import user_prompts
from eagle3_tools.bench.common.spread import Spread, in_turn
from eagle3_tools.bench.load.http_client import Address, request
from eagle3_tools.bench.load.server_process import serving
from serve.pair.notices import Notify

SIDES = {"draft": "3", "plain": "0"}
"""Side -> drafts per round."""
CLIENTS = (1, 8)
PER_CATEGORY = 2
MAX_TOKENS = 160
FLAGS = ("--demo", "--max-num-seqs", "8", "--max-model-len", "512", "--no-enable-prefix-caching")


@dataclass(frozen=True)
class ServedResult:
    """Rates of greedy answers to their ends, in tokens per second; `ratio` is per repetition."""

    clients: int
    prompts: int
    draft: Spread
    plain: Spread
    ratio: Spread


def compare_served(repetitions: int, notify: Notify) -> list[ServedResult]:
    """Start both servers on all cores of this process, and ask each in turn.

    A first run of each does not count. Raises OSError if a server does not start or answer.
    """
    prompts, results = user_prompts(PER_CATEGORY), []
    with ExitStack() as stack:
        urls = {}
        for side, k in SIDES.items():
            notify(f"answers over HTTP: starting the server, {k} drafts a round")
            server = serving([*FLAGS, "--speculative-config.num_speculative_tokens", k])
            urls[side] = Address.of(stack.enter_context(server)[1])
        for clients in CLIENTS:
            notify(f"answers over HTTP: {clients} clients")
            rates: dict[str, list[float]] = {side: [] for side in SIDES}
            for side in in_turn(SIDES, 1 + repetitions):
                rates[side].append(asyncio.run(_tokens_per_s(urls[side], prompts, clients)))
            draft, plain = (rates[side][1:] for side in SIDES)
            ratios = [a / b for a, b in zip(draft, plain, strict=True)]
            spreads = (Spread.of(each, rates=True) for each in (draft, plain, ratios))
            results.append(ServedResult(clients, len(prompts), *spreads))
    return results


async def _tokens_per_s(address: Address, prompts: Sequence[str], clients: int) -> float:
    """Answer all prompts, `clients` at a time, and return the tokens per second."""
    gate = asyncio.Semaphore(clients)

    async def answer(prompt: str) -> int:
        messages = [{"role": "user", "content": prompt}]
        body = {"messages": messages, "max_tokens": MAX_TOKENS, "temperature": 0, "seed": 0}
        async with gate:
            reply = (await request(address, "POST", "/v1/chat/completions", body)).json()
        return reply["usage"]["completion_tokens"]

    start = time.perf_counter()
    counts = await asyncio.gather(*map(answer, prompts))
    return sum(counts) / (time.perf_counter() - start)
