"""Worker process that uses the GPU; the command that starts it never does."""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp

from eagle3_tools.checks.pool import Last
from eagle3_tools.checks.record import commit, versions
from eagle3_tools.kernel_bench.ahead import Ahead
from eagle3_tools.kernel_bench.cases import rehearsed
from eagle3_tools.kernel_bench.ceilings import Ceilings, measure_ceilings
from eagle3_tools.kernel_bench.measure import Compiled, Measured, compile_case, measure, one_line
from eagle3_tools.kernel_bench.peers import FLEX
from eagle3_tools.kernel_bench.timing import DRY, Effort
from eagle3_tools.kernel_cases import all_cases
from eagle3_tools.kernel_cases.case import Case
from pallas_kernels import gpu

FLAGS = "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"
"""Without autotuning, a program compiles in a second and launches nothing; XLA's own products are
then the library's."""
NO_GPU = "this measures a GPU, and JAX has found none; --dry-run goes without"
_PACKAGES = ("jax", "jaxlib", "jax-rocm7-plugin", "jax-rocm10-plugin", "jax-cuda13-plugin")
_PACKAGES += ("torch", "triton")


@dataclass(frozen=True)
class Job:
    """A job: one case, or "" for the ceilings before all cases.

    ahead: cases to compile in the meantime. until: `time.time()` after which the job is not
    started. with_peers: measure peers too. peer: the only peer to measure; "" for all but FLEX.
    crash: end the process where the kernel would run, for rehearsals.
    """

    case: str
    ahead: tuple[str, ...] = ()
    dry_run: bool = False
    until: float = float("inf")
    with_peers: bool = True
    peer: str = ""
    crash: bool = False

    def wants(self, peer: str) -> bool:
        """Return whether this peer is to be measured."""
        return self.with_peers and (peer == self.peer if self.peer else peer != FLEX)


@dataclass(frozen=True)
class Opening:
    """Device, date, versions and commit, and the device's measured limits."""

    conditions: dict[str, Any]
    ceilings: Ceilings


def use_gpu_sparingly(*, dry_run: bool) -> None:
    """Set the environment of later processes: no preallocated memory, so that torch has some, and
    no autotuning. In a dry run: no GPU, and programs that compile quickly."""
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAGS}".strip()
    if dry_run:
        gpu.compile_quickly()
        os.environ["JAX_PLATFORMS"] = "cpu"


def work(job: Job) -> Any:
    """Return an Opening or a Measured, wrapped in Last if the process cannot run another job.

    Raises RuntimeError without a GPU, unless it is a dry run.
    """
    if jax.default_backend() == "cpu" and not job.dry_run:
        raise RuntimeError(NO_GPU)
    programs = _programs(job.dry_run, job.with_peers)
    for name in filter(None, (job.case, *job.ahead)):
        programs.begin(name)
    if not job.case:
        sizes = (1 << 22, 256) if job.dry_run else (1 << 33, 8192)
        with programs.turns.timing():
            return Opening(conditions(), measure_ceilings(*sizes, _effort(job.dry_run)))
    case = _cases(job.dry_run)[job.case]
    if time.time() > job.until:
        return Measured(case.name, case.operation, refused="not begun within the budget")
    try:
        result = _measure(job, case, programs)
    except (
        Exception
    ) as failure:  # A GPU fails in many ways, after which it may fail for everything.
        return Last(Measured(case.name, case.operation, refused=one_line(failure)))
    return result if _still_works() else Last(result)


def _measure(job: Job, case: Case, programs: Ahead) -> Measured:
    compiled = programs.take(case.name)
    if job.crash:
        print("a rehearsed crash", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    return measure(case, compiled, _effort(job.dry_run), programs.turns, job.wants)


def conditions() -> dict[str, Any]:
    return {
        "device": jax.devices()[0].device_kind,
        "arch": gpu.current().arch,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(_PACKAGES),
        "commit": commit(),
    }


def _effort(dry_run: bool) -> Effort:
    return DRY if dry_run else Effort()


@cache
def _cases(dry_run: bool) -> dict[str, Case]:
    return {case.name: case for case in (rehearsed() if dry_run else all_cases())}


@cache
def _programs(dry_run: bool, with_peers: bool) -> Ahead:
    """Return the compiled programs of this process."""

    def compile(name: str, turn: Callable[[], AbstractContextManager[None]]) -> Compiled:
        case = _cases(dry_run)[name]
        return compile_case(case, _effort(dry_run), turn, with_peers=with_peers)

    return Ahead(compile)


def _still_works() -> bool:
    """Return whether the device works: an illegal address of a peer breaks everything after it."""
    try:
        return int(jnp.arange(3).sum()) == 3
    except Exception:
        return False
