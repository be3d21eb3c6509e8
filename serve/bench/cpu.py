"""The CPU benchmark: every ratio that the README quotes, in one record."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from serve.bench.accept import AcceptRow, accept_table
from serve.bench.bandwidth import ReadBandwidth
from serve.bench.held_out import held_out
from serve.bench.kimi_108m import random_target
from serve.bench.plain import PlainResult, compare_plain
from serve.bench.rounds import RoundResult, compare_rounds
from serve.bench.transformers_peer import TransformersPeer, need_compiler
from serve.loading import LoadedPair

BATCHES = (1, 8)
WIDTHS = (1, 3, 6)
COMPILED = "compiled"
PEERS = ("default", COMPILED)
ANSWERED = 40
"""Held-out prompts whose answers are timed whole."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class CpuRecord:
    """What the command found; a part that was left out is empty.

    host_core: where the rounds' Python ran, the device being the pinned core. Plain decoding has
    one core for everything, on either side.
    """

    repetitions: int
    plain: list[PlainResult] = field(default_factory=list)
    rounds: list[RoundResult] = field(default_factory=list)
    host_core: int | None = None


def run_plain(
    repetitions: int, peers: Sequence[str], say: Say, batches: Sequence[int] = BATCHES
) -> list[PlainResult]:
    """Plain decoding of the random model against transformers, `peers` of PEERS.

    ImportError without torch, OSError without the C++ compiler of the peer that is compiled.
    """
    if COMPILED in peers:
        need_compiler()
    say("plain decoding: preparing the random model and its copies in transformers")
    target, bandwidth = random_target(), ReadBandwidth()
    copies = {name: TransformersPeer(target, compiled=name == COMPILED) for name in peers}
    results = []
    for batch in batches:
        say(f"plain decoding: batch {batch}; the first run of a compiled peer takes minutes")
        sides = copies, bandwidth
        results.append(compare_plain(target, *sides, batch=batch, repetitions=repetitions))
    return results


def run_rounds(
    pair: LoadedPair, repetitions: int, per_category: int, say: Say
) -> list[RoundResult]:
    """The speculative round of a pair, and its accept length on held-out prompts."""
    prompts, results = held_out(pair.tokenizer, per_category), []
    accept: dict[int, AcceptRow] = {}
    for k in WIDTHS:
        say(f"accept length: k={k} on {len(prompts)} held-out prompts")
        accept[k] = accept_table(pair, prompts, k, temperature=0.0)[-1]
    for batch in BATCHES:
        say(f"rounds: batch {batch}")
        ids = [prompt.token_ids for prompt in prompts]
        chosen, answered = ([ids[i] for i in _spread(n, len(ids))] for n in (batch, ANSWERED))
        results += compare_rounds(pair, chosen, answered, accept, repetitions=repetitions)
    return results


def _spread(count: int, among: int) -> list[int]:
    """Indices across all categories, not only the first."""
    return [i * among // count for i in range(count)]
