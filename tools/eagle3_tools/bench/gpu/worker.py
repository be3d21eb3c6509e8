"""Jobs of `eagle3-bench gpu`, run in a process with the GPU and on the CPU for comparison."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from eagle3_jax.engine import EngineConfig, Request
from eagle3_tools.bench.common.held_out import held_out
from eagle3_tools.bench.gpu.bare_round import ROUNDS, bare_round
from eagle3_tools.bench.gpu.serving_loop import serving_loop
from eagle3_tools.bench.studies.equal import SETTINGS
from eagle3_tools.checks.pool import Last
from serve.demo import demo_draft_dir, demo_target_dir
from serve.options.checkpoint import DEFAULTS
from serve.pair.loading import LoadedPair, load_pair

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
        """Name in tables."""
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
    requests = requests_of(pair, job)
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


def requests_of(pair: LoadedPair, job: Work) -> Sequence[Request]:
    """Return held-out prompts under all sampling settings, with seeds."""
    return [
        Request(
            f"prompt {i}, {name}",
            list(prompt.token_ids),
            replace(sampling, seed=1000 * i + s, max_tokens=job.max_tokens),
        )
        for i, prompt in enumerate(held_out(pair.tokenizer, job.prompts))
        for s, (name, sampling) in enumerate(SETTINGS.items())
    ]


def embedded_pair() -> LoadedPair:
    """Load the embedded pair with default options."""
    return load_pair(Path(demo_target_dir()), Path(demo_draft_dir()), DEFAULTS)
