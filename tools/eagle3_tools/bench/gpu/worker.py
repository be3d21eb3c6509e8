"""Jobs of `eagle3-bench gpu`, run in a process with the GPU and on the CPU for comparison."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from eagle3_jax.engine import Engine, EngineConfig, Request
from eagle3_jax.engine.programs.program import ProgramKind, has_argmax
from eagle3_tools.bench.common.drive import drive
from eagle3_tools.bench.common.engine_programs import EnginePrograms
from eagle3_tools.bench.common.held_out import held_out
from eagle3_tools.bench.cpu.phases import ENDLESS
from eagle3_tools.bench.gpu.launched import Launched, launched_by
from eagle3_tools.bench.studies.equal import requests_of
from eagle3_tools.checks.pool import Last
from serve.demo import demo_draft_dir, demo_target_dir
from serve.options.checkpoint import DEFAULTS
from serve.pair.loading import LoadedPair, load_pair


@dataclass(frozen=True)
class ServingLoop:
    """Token ids of each request in order, and throughput of all after warmup."""

    device: str
    answers: list[list[int]]
    tokens_per_s: float
    accept_length: float | None
    launched: Launched | None = None

    @property
    def holds(self) -> bool:
        """True if only the engine's programs were launched."""
        return self.launched is None or (self.launched.programs > 0 and not self.launched.foreign)


def serving_loop(
    pair: LoadedPair, config: EngineConfig, requests: Sequence[Request], *, traced: bool = True
) -> ServingLoop:
    """Answer the requests three times: to warm up, timed, and traced."""
    engine = Engine(pair.target, pair.draft, config, eos_token_ids=pair.eos_token_ids)

    def answer(run: str) -> list[list[int]]:
        named = [replace(one, request_id=f"{run} {one.request_id}") for one in requests]
        answers = drive(engine, named)
        return [list(answers[one.request_id].token_ids) for one in named]

    answers = answer("first")
    start = time.perf_counter()
    tokens = sum(map(len, answer("timed")))
    seconds = time.perf_counter() - start
    launched = launched_by(lambda: answer("traced")) if traced else None
    device = str(next(iter(pair.target.embed_tokens.embedding.get_value().devices())).device_kind)
    return ServingLoop(device, answers, tokens / seconds, engine.stats().accept_length, launched)


ROUNDS = 32


@dataclass(frozen=True)
class BareRound:
    """Microseconds and kernels of a round, dispatched back to back; launches of `rounds` rounds."""

    batch: int
    rounds: int
    us: float
    kernels: float
    launched: Launched

    @property
    def holds(self) -> bool:
        """True if a round launches its program once and nothing else."""
        return self.launched.programs == self.rounds and not self.launched.foreign


def bare_round(
    pair: LoadedPair, config: EngineConfig, prompts: Sequence[Sequence[int]], rounds: int = ROUNDS
) -> BareRound:
    """Prefill the prompts, one per slot, and time rounds of them."""
    programs = EnginePrograms(pair.target, pair.draft, config)
    batch = programs.fill_slots(prompts, [ENDLESS] * len(prompts))
    kind = ProgramKind.ARGMAX_ROUND if has_argmax(config) else ProgramKind.ROUND
    program = programs.compiled(kind, *batch)
    weights, state = (programs.target_leaves, programs.draft_leaves), programs.state

    def run() -> None:
        nonlocal state
        report: Any = None
        for _ in range(rounds):
            state, report, _ = program(*weights, state, *batch)
        jax.block_until_ready(report)

    run()
    start = time.perf_counter()
    run()
    us = (time.perf_counter() - start) / rounds * 1e6
    launched = launched_by(run)
    kernels = sum(launched.kernels.values()) / rounds
    return BareRound(len(prompts), rounds, us, kernels, launched)


NO_GPU = "this measures a GPU, and JAX has found none; --dry-run goes without"
PAGE_SIZE = 16


@dataclass(frozen=True)
class Work:
    """A job: `part` is "round" or "loop", `prompts` are per category; `crash` rehearses a crash."""

    part: str
    k: int
    batch: int
    prompts: int
    max_tokens: int
    dry_run: bool = False
    crash: bool = False

    @property
    def name(self) -> str:
        return f"{self.part}, k={self.k}, batch {self.batch}"


def use_full_precision(*, dry_run: bool) -> None:
    """Set the environment of new processes: exact float32 products, no memory preallocation."""
    if dry_run:
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def work(job: Work) -> Any:
    """Measure the embedded pair; return a BareRound or ServingLoop in a `Last`.

    `Last` gives each part its own process. Raises RuntimeError without a GPU except in a dry run.
    """
    if jax.default_backend() == "cpu" and not job.dry_run:
        raise RuntimeError(NO_GPU)
    if job.crash:
        print("a rehearsed crash", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return Last(measure(embedded_pair(), job))


def measure(pair: LoadedPair, job: Work, *, traced: bool = True) -> Any:
    """Return a BareRound or a ServingLoop, measured on JAX's default device."""
    requests = held_out_requests(pair, job)
    longest = max(len(one.prompt_ids) for one in requests) + job.max_tokens
    room = longest if job.part == "loop" else longest + 4 * ROUNDS * (job.k + 1)
    config = EngineConfig(
        num_speculative_tokens=job.k,
        max_model_len=-(-room // PAGE_SIZE) * PAGE_SIZE,
        max_num_seqs=job.batch,
        page_size=PAGE_SIZE,
        batch_buckets=(job.batch,),
    )
    if job.part == "round":
        prompts = [requests[i % len(requests)].prompt_ids for i in range(job.batch)]
        return bare_round(pair, config, prompts)
    return serving_loop(pair, config, requests, traced=traced)


def held_out_requests(pair: LoadedPair, job: Work) -> list[Request]:
    """Return the job's held-out prompts under all sampling settings."""
    prompts = [prompt.token_ids for prompt in held_out(pair.tokenizer, job.prompts)]
    return requests_of(prompts, job.max_tokens)


def embedded_pair() -> LoadedPair:
    return load_pair(Path(demo_target_dir()), Path(demo_draft_dir()), DEFAULTS)
