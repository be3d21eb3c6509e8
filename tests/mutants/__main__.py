"""Runs the nearest tests against each fault and says which faults no test notices."""

import argparse
import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess
from pathlib import Path
from typing import NamedTuple

from mutants.child import Verdict, run
from mutants.rows import ROOT, Row, problems, read_rows

RECORD = ROOT / "docs/benchmarks/mutants.json"
LEAST_KILLED = 0.95
PRELOADED = (
    *("flax.nnx", "optax", "hypothesis.stateful", "jaxtyping", "fastapi", "pydantic", "llguidance"),
    *("jax.experimental.pallas.triton", "rich", "tokenizers", "PIL.Image", "tiktoken"),
)
"""Third-party modules that many tests import, loaded once for all processes."""
PASSED, FAILED = 0, 1


class Job(NamedTuple):
    """Tests to run with the fault of `row`, or without a fault, for at most `seconds`."""

    row: Row | None
    tests: tuple[str, ...]
    seconds: float


class Outcome(NamedTuple):
    """The end of a job; `verdict` is None where the process crashed or was too slow."""

    verdict: Verdict | None
    seconds: float
    log: str


def main() -> int:
    """Returns the exit status: 1 for a stale row, or where too few faults are noticed."""
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


def _commit() -> str:
    return subprocess.check_output(("git", "rev-parse", "HEAD"), cwd=ROOT, text=True).strip()


def _run_rows(rows: list[Row], record: "Record", caches: Path, at_a_time: int) -> bool:
    """Run each set of tests without a fault, then with each of its faults; returns whether all rows
    were valid."""
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


def _note(row: Row, outcome: Outcome, record: "Record") -> bool:
    """Print and record what became of a fault; returns whether its row is valid."""
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
    """Run each job in a process of its own, `at_a_time` of them together."""
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
            verdict = pipe.recv() if process.exitcode == 0 and pipe.poll() else None
            pipe.close()
            text = log.read_text(encoding="utf-8", errors="replace")
            yield job, Outcome(verdict, seconds, text[-1500:])


def _end(process: ForkProcess) -> None:
    """End a process and all that it started, which are in its process group."""
    assert process.pid
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.join()


class Record:
    """Which faults were noticed, by area; the value of each is the stamp of its row.

    Every result is added to the file at once, so that a run may be stopped and several may go on
    at a time. Results of rows that have changed since are left out.
    """

    def __init__(self, rows: list[Row], file: Path | None):
        """With `file=None` nothing is read or written."""
        self._file = file
        self._stamps = {(row.area, row.name): row.stamp for row in rows}
        self._areas: dict[str, dict[str, dict[str, str]]] = {}
        self._read()

    def has(self, row: Row) -> bool:
        """Return whether there is a result for this row."""
        return any(row.name in names for names in self._areas.get(row.area, {}).values())

    def note(self, row: Row, killed: bool) -> None:
        """Add the result of a row."""
        self._read()
        self._add(row.area, row.name, killed)
        if self._file is not None:
            killed_count, survived = self._counts()
            facts = {
                "commit": _commit(),
                "date": datetime.now(UTC).isoformat(timespec="seconds"),
                "killed": killed_count,
                "survived": survived,
                "areas": self._areas,
            }
            partial = self._file.with_suffix(f".{os.getpid()}")
            partial.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
            partial.replace(self._file)

    def print_table(self) -> float:
        """Print the results by area; returns the share of faults that were noticed."""
        for name, area in sorted(self._areas.items()):
            print(f"{name:14} {len(area['killed']):4} killed {len(area['survived']):4} survived")
            for fault in area["survived"]:
                print(f"    SURVIVED {fault}")
        killed, survived = self._counts()
        share = killed / max(1, killed + survived)
        print(f"{'all':14} {killed:4} killed {survived:4} survived   {share:.1%}")
        return share

    def _read(self) -> None:
        if self._file is None or not self._file.exists():
            return
        for area, found in json.loads(self._file.read_text(encoding="utf-8"))["areas"].items():
            for word, names in found.items():
                for name, stamp in names.items():
                    if self._stamps.get((area, name)) == stamp:
                        self._add(area, name, word == "killed")

    def _add(self, area: str, name: str, killed: bool) -> None:
        found = self._areas.setdefault(area, {"killed": {}, "survived": {}})
        for word, names in found.items():
            names.pop(name, None)
            if (word == "killed") == killed:
                names[name] = self._stamps[area, name]

    def _counts(self) -> tuple[int, int]:
        areas = self._areas.values()
        return sum(len(a["killed"]) for a in areas), sum(len(a["survived"]) for a in areas)


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
