"""What `eagle3-bench gpu` does in a process that has the GPU, and on the CPU for comparison."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax

from eagle3_jax.engine import EngineConfig, Request
from eagle3_tools.aot.workers import Last
from eagle3_tools.bench.common.held_out import held_out
from eagle3_tools.bench.gpu.bare_round import ROUNDS, bare_round
from eagle3_tools.bench.gpu.serving_loop import serving_loop
from eagle3_tools.bench.studies.equal import SETTINGS
from serve.demo import demo_draft_dir, demo_target_dir
from serve.options.checkpoint import DEFAULTS
from serve.pair.loading import LoadedPair, load_pair

NO_GPU = "this measures a GPU, and JAX has found none; --dry-run goes without"
PAGE_SIZE = 16


@dataclass(frozen=True)
class Work:
    """part: round or loop. k: drafts a round; batch: sequences at once; prompts: a category. crash:
    the process ends in place of a result."""

    part: str
    k: int
    batch: int
    prompts: int
    max_tokens: int
    dry_run: bool = False
    crash: bool = False

    @property
    def name(self) -> str:
        """How it is listed."""
        return f"{self.part}, k={self.k}, batch {self.batch}"


def use_full_precision(*, dry_run: bool) -> None:
    """The environment of processes started from now on: products of float32 in float32, as on the
    CPU that they are compared with, and no memory taken in advance. In a dry run no GPU."""
    if dry_run:
        os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["JAX_DEFAULT_MATMUL_PRECISION"] = "highest"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def work(job: Work) -> Any:
    """A BareRound or a ServingLoop of the embedded pair, in a Last: a process a part.

    Raises RuntimeError without a GPU, unless it is a dry run.
    """
    if jax.default_backend() == "cpu" and not job.dry_run:
        raise RuntimeError(NO_GPU)
    if job.crash:
        print("a rehearsed crash", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return Last(measure(embedded_pair(), job))


def measure(pair: LoadedPair, job: Work, *, traced: bool = True) -> Any:
    """A BareRound or a ServingLoop, on JAX's default device."""
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
    """Held-out prompts under all sampling settings, seeded."""
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
    """As users load it."""
    return load_pair(Path(demo_target_dir()), Path(demo_draft_dir()), DEFAULTS)
