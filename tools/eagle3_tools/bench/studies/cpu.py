"""Plain decoding, answers, rounds, long contexts, the vision tower and loading on a CPU."""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import jax.numpy as jnp
from rich.console import Console

from convert import load_target, save_hf
from convert.command_line.options import COUNT
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.models.kimi import KimiTarget
from eagle3_tools.bench.acceptance.answerers import held_out_tables
from eagle3_tools.bench.acceptance.tasks import held_out_tasks
from eagle3_tools.bench.common.accept_length import AcceptRow
from eagle3_tools.bench.common.command import finish, given_pair, target_directory
from eagle3_tools.bench.common.conditions import allowed_cores, conditions, move_host, pin
from eagle3_tools.bench.common.flags import add_pair_flags, add_shared
from eagle3_tools.bench.common.held_out import held_out
from eagle3_tools.bench.common.spread import Spread
from eagle3_tools.bench.cpu.byte_floor import ReadBandwidth
from eagle3_tools.bench.cpu.context import ContextResult, compare_contexts
from eagle3_tools.bench.cpu.kimi_108m import random_target
from eagle3_tools.bench.cpu.llama_peer import LlamaPeer, missing_package
from eagle3_tools.bench.cpu.load import LoadResult, measure_load, print_load
from eagle3_tools.bench.cpu.plain import CONTEXT, Generate, PlainResult, StepTimes, compare_plain
from eagle3_tools.bench.cpu.rounds import RoundResult, compare_rounds
from eagle3_tools.bench.cpu.served import ServedResult, compare_served
from eagle3_tools.bench.cpu.tower import TowerResult, compare_towers
from eagle3_tools.bench.cpu.transformers_peer import TransformersPeer, need_compiler
from eagle3_tools.bench.studies.equal import describe
from eagle3_tools.checks.check import table_of
from serve.pair.loading import LoadedPair
from serve.pair.notices import Notify
from serve.text_table import text_table

PARTS = ("plain", "served", "round", "context", "tower", "load")
BATCHES = (1, 8)
DTYPES = ("float32", "bfloat16")
WIDTHS = (1, 3, 6)
DEFAULT, COMPILED, LLAMA = "default", "compiled", "llama"
PEERS = {DEFAULT: "transformers", COMPILED: "transformers, compiled", LLAMA: "llama.cpp"}
ANSWERED = 40
"""Held-out prompts whose whole answers are timed."""


@dataclass(frozen=True)
class CpuRecord:
    """Result of the command; parts that did not run are empty.

    `host_core` ran Python during the rounds, while the device ran on the pinned core. Plain
    decoding has one core a thread for everything, peers too; servers have all cores.
    """

    repetitions: int
    plain: list[PlainResult] = field(default_factory=list)
    served: list[ServedResult] = field(default_factory=list)
    rounds: list[RoundResult] = field(default_factory=list)
    contexts: list[ContextResult] = field(default_factory=list)
    towers: list[TowerResult] = field(default_factory=list)
    load: LoadResult | None = None
    host_core: int | None = None


def add_flags(parser: argparse.ArgumentParser) -> None:
    add_pair_flags(parser, load=False)
    parser.add_argument("--only", choices=PARTS, help="one part of the benchmark")
    add_shared(parser, "--repetitions")
    add_shared(parser, "--prompts", default=20, help="held-out prompts a category, for accept")
    add_shared(parser, "--core", help="the core to run on; default: the last")
    parser.add_argument(
        "--cpu-threads",
        type=COUNT,
        default=1,
        metavar="N",
        help="threads, with a core each, of plain decoding and its peers (--only plain)",
    )
    parser.add_argument(
        "--peers",
        nargs="+",
        choices=PEERS,
        default=list(PEERS),
        help="transformers' generate as it comes; with a static cache, torch.compile (needs g++) "
        "and batched experts; llama.cpp, if the wheel xllamacpp is installed; default: all",
    )
    parser.add_argument(
        "--dtypes",
        nargs="+",
        choices=DTYPES,
        default=list(DTYPES),
        help="weights of plain decoding and its peers",
    )


def run(flags: argparse.Namespace, console: Console) -> int:
    # Before JAX and torch start: both size their thread pools by the cores they may use.
    allowed = allowed_cores()
    notify = Console(stderr=True).print
    parts = PARTS if flags.only is None else (flags.only,)
    if flags.cpu_threads > 1 and parts != ("plain",):
        raise ValueError("--cpu-threads above 1 needs --only plain: other parts have one core")
    served = compare_served(flags.repetitions, notify) if "served" in parts else []
    found = conditions(pin(flags.core, flags.cpu_threads))
    plain = run_plain(flags, notify) if "plain" in parts else []
    towers = compare_towers(flags.repetitions) if "tower" in parts else []
    load = measure_load(target_directory(flags), flags.repetitions) if "load" in parts else None
    rounds, contexts, host_core = [], [], found.pinned_core
    if {"round", "context"} & set(parts):
        pair = given_pair(flags)
        host_core = move_host(allowed, found.pinned_core)
        if "round" in parts:
            rounds = run_rounds(pair, flags.repetitions, flags.prompts, notify)
        if "context" in parts:
            contexts = compare_contexts(pair, flags.repetitions, notify)
    record = CpuRecord(flags.repetitions, plain, served, rounds, contexts, towers, load, host_core)
    found.print_to(console, flags.repetitions)
    print_result(console, record)
    return finish(flags, "cpu", found, record)


def print_result(console: Console, record: CpuRecord) -> None:
    if record.plain:
        print_plain(console, record.plain)
    if record.served:
        title = "Whole answers of the embedded pair over HTTP, tokens/s (median), k = 3 and plain"
        console.print(table_of(title, SERVED_COLUMNS, record.served))
    if record.rounds:
        title = "The speculative round of the pair, greedy, ms a round (median)"
        console.print(table_of(title, ROUND_COLUMNS, record.rounds))
        console.print(verdict(record.rounds))
    if record.contexts:
        title = "One sequence, a round of k=3 by context, ms (median)"
        console.print(table_of(title, CONTEXT_COLUMNS, record.contexts))
    if record.towers:
        layers = record.towers[0].layers
        title = f"MoonViT of released widths, {layers} of 27 blocks, float32, one thread"
        console.print(table_of(title, TOWER_COLUMNS, record.towers))
    if record.load:
        print_load(console, record.load)


def print_plain(console: Console, results: Sequence[PlainResult]) -> None:
    """Print plain decoding and its peers, the byte floor, and the time by operation."""
    title = "Plain decoding, greedy, random 108 M-parameter Kimi; times to the engine's"
    headings = ("", "dtype", "threads", "batch", "ms a step", "tokens/s")
    headings += ("to the engine", "(best)", "whole runs", "equal")
    table = text_table(title, headings, left=("", "dtype"))
    for result in results:
        for cells in _plain_rows(result):
            table.add_row(*cells)
        table.add_section()
    console.print(table)
    for result in results:
        print_floor(console, result)
        print_profile(console, result)


def _plain_rows(result: PlainResult) -> list[tuple[str, ...]]:
    """Return rows for the engine and every peer. Whole runs include prefill, tokens/s does not."""

    def cells(name: str, times: StepTimes) -> tuple[str, ...]:
        run = result.dtype, f"{result.threads}", f"{result.batch}"
        step = times.step_s
        return name, *run, step.milliseconds, f"{result.batch / step.median:.1f}"

    rows: list[tuple[str, ...]] = [(*cells("engine", result.engine), "", "", "", "")]
    for name, peer in result.peers.items():
        mark = " (the peer)" if name == result.fastest_peer else ""
        ratios = peer.ratio_median, peer.ratio_best, peer.ratio_end_to_end
        times = (f"{ratio:.2f}x" for ratio in ratios)
        equal = f"{peer.identical}/{result.batch}"
        rows.append((*cells(f"{name}{mark}", peer.times), *times, equal))
    return rows


def print_floor(console: Console, result: PlainResult) -> None:
    """Print the bytes and the shortest time of a step, and how many sequences equal the peers'."""
    floor, speed = result.floor, result.bandwidth
    console.print(
        f"batch {result.batch}: a step reads {floor.weight_bytes / 1e6:.1f} MB of weights "
        f"({floor.distinct_experts:.1f} distinct experts a layer) and "
        f"{floor.kv_bytes / 1e6:.2f} MB of cache; one thread reads "
        f"{speed.median / 1e9:.1f} GB/s (best {speed.best / 1e9:.1f}): "
        f"{floor.seconds(speed.median) * 1e3:.2f} ms at least, "
        f"{result.floor_share_median:.0%} of the floor reached (best {result.floor_share_best:.0%})"
    )
    for name, peer in result.peers.items():
        console.print(
            f"batch {result.batch}, {result.dtype}: {peer.identical} of {result.batch} sequences "
            f"of {result.new_tokens.long} tokens equal those of {name}"
        )
        for difference in peer.differences if result.dtype == "float32" else ():
            console.print(f"  {describe(difference)}")


def print_profile(console: Console, result: PlainResult) -> None:
    whole = sum(operation.microseconds for operation in result.profile)
    columns = {
        "operation": lambda found: found.name,
        "us a step": lambda found: f"{found.microseconds:.0f}",
        "share": lambda found: f"{found.microseconds / whole:.0%}",
        "runs a step": lambda found: f"{found.count:.0f}",
    }
    title = f"Batch {result.batch}: one step by operation, under the profiler"
    console.print(table_of(title, columns, result.profile, left=("operation",)))


def _milliseconds(spread: Spread | None) -> str:
    assert spread, "a speculative round has phases"
    return f"{spread.median * 1e3:.2f}"


ROUND_COLUMNS: dict[str, Callable[[RoundResult], str]] = {
    "k": lambda found: f"{found.num_speculative_tokens}",
    "batch": lambda found: f"{found.batch}",
    "decode": lambda found: _milliseconds(found.plain.fused),
    "draft alone": lambda found: _milliseconds(found.times.propose),
    "verify alone": lambda found: _milliseconds(found.times.verify),
    "in turn": lambda found: _milliseconds(found.times.phases),
    "one program": lambda found: _milliseconds(found.times.fused),
    "engine": lambda found: _milliseconds(found.times.engine),
    "of prediction": lambda found: f"{found.prediction_share:.2f}",
    "of alone": lambda found: f"{found.warm_prediction_share:.2f}",
    "host": lambda found: f"{found.host_share:.1%}",
    "kept a round": lambda found: f"{found.answers.kept_length:.2f}",
    "break-even": lambda found: f"{found.break_even:.2f}",
    "tokens/s": lambda found: f"{found.answers.tokens_per_s.median:.0f}",
    "plain": lambda found: f"{found.answers.plain_tokens_per_s.median:.0f}",
    "ratio": lambda found: f"{found.answers.speedup.median:.2f}x",
    "its range": lambda found: (
        f"{found.answers.speedup.worst:.2f}-{found.answers.speedup.best:.2f}"
    ),
}
SERVED_COLUMNS: dict[str, Callable[[ServedResult], str]] = {
    "clients": lambda found: f"{found.clients}",
    "draft": lambda found: f"{found.draft.median:.0f}",
    "plain": lambda found: f"{found.plain.median:.0f}",
    "ratio": lambda found: f"{found.ratio.median:.2f}x",
    "its range": lambda found: f"{found.ratio.worst:.2f}-{found.ratio.best:.2f}",
}
CONTEXT_COLUMNS: dict[str, Callable[[ContextResult], str]] = {
    "context": lambda found: f"{found.context}",
    "step": lambda found: found.step.milliseconds,
    "attention": lambda found: found.attention.milliseconds,
    "other operations": lambda found: found.rest.milliseconds,
    "host": lambda found: found.host.milliseconds,
    "attention, ns a row": lambda found: f"{found.attention.median / found.context * 1e9:.0f}",
}
TOWER_COLUMNS: dict[str, Callable[[TowerResult], str]] = {
    "patches": lambda found: f"{found.patches}",
    "ms": lambda found: found.ours.milliseconds,
    "transformers, ms": lambda found: found.peer.milliseconds,
    "to ours": lambda found: f"{found.ratio:.2f}x",
    "share of the floor": lambda found: f"{found.floor_share:.0%}",
}


def verdict(results: Sequence[RoundResult]) -> str:
    """Return one sentence that says whether speculation pays off on this machine."""
    best = max(results, key=lambda result: result.answers.speedup.median)
    speedup = best.answers.speedup.median
    where = f"k={best.num_speculative_tokens}, batch {best.batch}"
    if speedup >= 1:
        return f"Speculation pays here: at best {speedup:.2f}x plain ({where})."
    return (
        f"Speculation loses here: at best {speedup:.2f}x plain ({where}). A model this "
        "small is bound by arithmetic on a CPU: every verified row costs almost a step of its own."
    )


def run_plain(flags: argparse.Namespace, notify: Notify) -> list[PlainResult]:
    """Compare plain decoding of the random model with `flags.peers`, in each of `flags.dtypes`.

    Raises ImportError without torch, OSError without a C++ compiler for the compiled peer.
    """
    peers = [name for name in PEERS if name in flags.peers]
    if COMPILED in peers:
        need_compiler()
    if LLAMA in peers and (line := missing_package()):
        notify(line)
        peers.remove(LLAMA)
    results, bandwidth = [], ReadBandwidth()
    for dtype in flags.dtypes:
        target = _in_dtype(random_target(), dtype)
        for batch in BATCHES:
            notify(f"plain decoding: {dtype}, batch {batch}; a compiled peer starts for minutes")
            others = {PEERS[name]: _peer(name, target, dtype, batch, flags) for name in peers}
            sizes = bandwidth, batch, flags.repetitions
            own: Any = {"dtype": dtype, "threads": flags.cpu_threads}
            results.append(compare_plain(target, others, *sizes, **own))
    return results


def _in_dtype(target: KimiTarget, dtype: str) -> Any:
    """Return the target as it is loaded from a checkpoint of this dtype."""
    if dtype == "float32":
        return target
    with tempfile.TemporaryDirectory() as directory:
        save_hf(target, directory, dtype=jnp.dtype(dtype))
        return load_target(directory)


def _peer(
    name: str, target: KimiTarget, dtype: str, batch: int, flags: argparse.Namespace
) -> Generate:
    if name == LLAMA:
        make: Any = partial(LlamaPeer, dtype=jnp.dtype(dtype), batch=batch, context=CONTEXT)
    else:
        make = partial(TransformersPeer, dtype=dtype, compiled=name == COMPILED)
    return make(target, threads=flags.cpu_threads).generate


def run_rounds(
    pair: LoadedPair, repetitions: int, per_category: int, notify: Notify
) -> list[RoundResult]:
    """Measure a pair's speculative round, and its accept length on held-out prompts."""
    prompts, results = held_out(pair.tokenizer, per_category), []
    tasks = held_out_tasks(per_category)
    accept: dict[int, AcceptRow] = {}
    for k in WIDTHS:
        notify(f"accept length: k={k} on {len(prompts)} held-out prompts")
        accept[k] = held_out_tables(pair, tasks, EngineConfig(k), [0.0])[0][-1]
    for batch in BATCHES:
        notify(f"rounds: batch {batch}")
        ids = [prompt.token_ids for prompt in prompts]
        chosen, answered = ([ids[i] for i in _spread(n, len(ids))] for n in (batch, ANSWERED))
        results += compare_rounds(pair, chosen, answered, accept, repetitions=repetitions)
    return results


def _spread(count: int, among: int) -> list[int]:
    """Return evenly spaced indices, to cover all categories."""
    return [i * among // count for i in range(count)]
