"""Run the nearest tests against each fault, and report the faults that no test notices."""

import argparse
import importlib
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

from mutants.child import Verdict, run
from mutants.record import RECORD, Record
from mutants.rows import ROOT, Row, problems, read_rows

LEAST_KILLED = 0.95
PRELOADED = (
    *("flax.nnx", "optax", "hypothesis.stateful", "jaxtyping", "fastapi", "pydantic", "llguidance"),
    *("jax.experimental.pallas.triton", "rich", "tokenizers", "PIL.Image", "tiktoken"),
)
"""Third-party modules that many tests import, loaded once for all processes."""
PASSED, FAILED, BROKEN = 0, 1, 3
"""Exit statuses of pytest."""


class Job(NamedTuple):
    """Tests to run with the fault of `row`, or without a fault, for at most `seconds`."""

    row: Row | None
    tests: tuple[str, ...]
    seconds: float


class Outcome(NamedTuple):
    """The end of a job; `verdict` is None if the process crashed or exceeded its time."""

    verdict: Verdict | None
    seconds: float
    log: str


def main() -> int:
    """Return the exit status: 1 for a stale row, or if too few faults are noticed."""
    flags = _flags()
    rows = read_rows()
    if stale := [problem for row in rows for problem in problems(row)]:
        print(*stale, sep="\n", file=sys.stderr)
        return 1
    record = Record(rows, RECORD if flags.record else None)
    chosen = [
        row for row in rows if not flags.words or any(word in str(row) for word in flags.words)
    ]
    for name in PRELOADED:
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="mutants") as caches:
        left = [row for row in chosen if not (flags.resume and record.has(row))]
        valid = _run_rows(left, record, Path(caches), flags.at_a_time)
    return int(not valid or record.print_table() < LEAST_KILLED)


def _run_rows(rows: list[Row], record: Record, caches: Path, at_a_time: int) -> bool:
    """Run tests without a fault, then with each of theirs; return whether all rows were valid."""
    valid = True
    for tests in dict.fromkeys(row.tests for row in rows):
        ((_, sound),) = _run_jobs([Job(None, tests, 600)], caches, 1)
        if sound.verdict is None or sound.verdict.status != PASSED:
            valid = False
            print(f"fails without a fault: {' '.join(tests)}\n{sound.log}", flush=True)
            continue
        print(f"sound    {sound.seconds:5.1f} s  {' '.join(tests)}", flush=True)
        jobs = [Job(r, tests, 60 + 10 * sound.seconds) for r in rows if r.tests == tests]
        for job, outcome in _run_jobs(jobs, caches, at_a_time):
            assert job.row
            valid &= _note(job.row, outcome, record)
    return valid


def _note(row: Row, outcome: Outcome, record: Record) -> bool:
    """Print and record the result of a fault; return whether its row is valid."""
    verdict = outcome.verdict
    if verdict and (verdict.status not in (PASSED, FAILED) or not verdict.imported):
        reason = "cannot run" if verdict.imported else "its module is not imported"
        print(f"INVALID  {row}: {reason}\n{outcome.log}", flush=True)
        return False
    killed = verdict is None or verdict.status == FAILED
    by = (verdict.failed if verdict else "a crash or the time limit") if killed else ""
    word = "killed  " if killed else "SURVIVED"
    print(f"{word} {outcome.seconds:5.1f} s  {row}  {by}", flush=True)
    record.note(row, killed)
    return True


def _run_jobs(jobs: list[Job], caches: Path, at_a_time: int) -> Iterator[tuple[Job, Outcome]]:
    """Run each job in its own process, `at_a_time` of them in parallel."""
    waiting = jobs[::-1]
    running: dict[int, tuple[Job, ForkProcess, Connection, Path, float]] = {}
    context = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < at_a_time:
            job = waiting.pop()
            ours, theirs = context.Pipe(duplex=False)
            log = Path(tempfile.mkstemp(dir=caches, suffix=".log")[1])
            process = context.Process(target=run, args=(job.row, job.tests, caches, log, theirs))
            process.start()
            theirs.close()
            running[process.sentinel] = (job, process, ours, log, time.monotonic())
        wait(list(running), timeout=1)
        for sentinel, (job, process, pipe, log, start) in list(running.items()):
            seconds = time.monotonic() - start
            if process.exitcode is None and seconds < job.seconds:
                continue
            _end(process)
            del running[sentinel]
            text = log.read_text(encoding="utf-8", errors="replace")
            yield job, Outcome(_verdict(process, pipe), seconds, text[-1500:])


def _verdict(process: ForkProcess, pipe: Connection) -> Verdict | None:
    """Return the verdict of a process that has ended, or None if a signal ended it."""
    with pipe:
        if process.exitcode == 0 and pipe.poll():
            return pipe.recv()
    return Verdict(BROKEN, None, True) if process.exitcode and process.exitcode > 0 else None


def _end(process: ForkProcess) -> None:
    """Kill a process and everything it started, which is in its process group."""
    assert process.pid
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.join()


def _flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument(
        "words", nargs="*", help="run the rows whose 'area: name' has one of these words"
    )
    parser.add_argument("--at-a-time", type=int, default=2, help="processes at a time")
    parser.add_argument("--resume", action="store_true", help="keep results of unchanged rows")
    parser.add_argument("--record", action="store_true", help=f"write {RECORD.relative_to(ROOT)}")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
