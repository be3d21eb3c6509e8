"""Run a probe on the twin with each deliberate fault, and report the faults that it does not show.

A fault is shown by another result than without it, an error, or the end of the time. Streams are
delayed by a random generator, so that a missing wait gives wrong values.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mutants.rows import Row
from mutants.twin.faults import PROBES, faults

DELAYS = {"TWIN_DELAYS": "7"}
KEEP_ALL = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
"""Keep every program: many faults change none."""
ON_CPU = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
LIMIT_S = 900.0
ROOM = 4
"""A probe with a fault may take so many times as long as without one."""


@dataclass(frozen=True)
class Outcome:
    """The probe's result, or the last words of one that failed."""

    result: Mapping[str, Any] | None
    said: str
    seconds: float


def main() -> int:
    """Return 1 if a fault is not shown, or if a probe fails without one."""
    parser = argparse.ArgumentParser(prog="python -m mutants.twin", description=__doc__)
    parser.add_argument("words", nargs="*", help="run the faults with one of these words")
    words = parser.parse_args().words
    rows = [row for row in faults() if not words or any(word in row.name for word in words)]
    with tempfile.TemporaryDirectory() as programs:
        os.environ |= {"JAX_COMPILATION_CACHE_DIR": programs} | KEEP_ALL
        return 0 if rows and _all_shown(rows) else 1


def _all_shown(rows: Sequence[Row]) -> bool:
    holds = True
    for (probe,) in dict.fromkeys(row.tests for row in rows):
        expected, sound = _probe("", probe, on_cpu=True), _probe("", probe)
        if not sound.result or not expected.result or not _agree(sound.result, expected.result):
            print(f"FAILS without a fault: {probe}: {sound} expected {expected}", flush=True)
            holds = False
            continue
        print(f"sound   {sound.seconds:6.1f} s  {probe}", flush=True)
        for row in (row for row in rows if row.tests == (probe,)):
            found = _probe(row.name, probe, ROOM * sound.seconds)
            shown = found.result != sound.result
            changed = {k: v for k, v in (found.result or {}).items() if sound.result.get(k) != v}
            by = found.said if found.result is None else json.dumps(changed)
            word = "shown  " if shown else "MISSED "
            print(f"{word} {found.seconds:6.1f} s  {row.name}: {by[:200]}", flush=True)
            holds &= shown
    return holds


def _agree(found: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    """Return whether the facts that a CPU knows too are equal."""
    return all(found[name] == value for name, value in expected.items() if value is not None)


def _probe(fault: str, probe: str, limit_s: float = LIMIT_S, *, on_cpu: bool = False) -> Outcome:
    devices, command = PROBES[probe]
    child = [sys.executable, "-m", "mutants.twin.child", fault, *command]
    twin = [sys.executable, "-m", "eagle3_tools.twin", "-n", str(devices), "--", *child]
    started = time.monotonic()
    try:
        done = subprocess.run(
            child if on_cpu else twin,
            env=os.environ | (ON_CPU if on_cpu else DELAYS),
            capture_output=True,
            text=True,
            timeout=limit_s,
        )
    except subprocess.TimeoutExpired:
        return Outcome(None, f"no result within {limit_s:.0f} s", limit_s)
    seconds = time.monotonic() - started
    if done.returncode and not done.stdout:
        return Outcome(None, (done.stderr.strip().splitlines() or ["no words"])[-1], seconds)
    return Outcome(json.loads(done.stdout.splitlines()[-1]), "", seconds)


if __name__ == "__main__":
    sys.exit(main())
