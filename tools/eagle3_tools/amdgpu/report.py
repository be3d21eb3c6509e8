"""The table of opcodes, totals and a JSON record of the checks."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import isnan
from pathlib import Path
from typing import Any

from rich.table import Table

from eagle3_tools.amdgpu.check import Checked
from eagle3_tools.checks.check import table_of

CLASSES: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("matrix", lambda name: name.startswith("v_mfma")),
    ("vector", lambda name: name.startswith("v_")),
    ("LDS", lambda name: name.startswith("ds_")),
    ("global", lambda name: name.startswith(("global_", "buffer_", "s_load"))),
    ("wait", lambda name: name in ("s_waitcnt", "s_barrier", "s_nop")),
    ("scalar", lambda name: True),
)
"""Instruction classes with their predicates; the first that matches counts."""


def by_class(instructions: Counter[str]) -> dict[str, int]:
    """Count wave instructions by class."""
    total: Counter[str] = Counter()
    for name, times in instructions.items():
        total[next(label for label, fits in CLASSES if fits(name))] += times
    return {label: total[label] for label, _ in CLASSES}


def opcode_table(results: Sequence[Checked], witness_of: Callable[[str], str]) -> Table:
    """Return a table with a line for each opcode: executions on each GPU, and its witness."""
    archs = sorted({result.arch for result in results}, reverse=True)
    counts = {arch: executed(results, arch) for arch in archs}
    of_archs = {arch: lambda name, arch=arch: f"{counts[arch][name]}" for arch in archs}
    columns = {"opcode": str, **of_archs, "second witness": witness_of}
    left = ("opcode", "second witness")
    return table_of("Opcodes", columns, sorted(there(results)), left=left, box=None)


def executed(results: Iterable[Checked], arch: str) -> Counter[str]:
    """Count wave instructions on one GPU, by name."""
    return sum((r.instructions for r in results if r.arch == arch), Counter())


def there(results: Iterable[Checked]) -> set[str]:
    """Return every instruction name in the code of the kernels."""
    return {name for result in results for name in result.there}


def summary(results: Sequence[Checked], seconds: float) -> list[str]:
    """Return lines with failures, opcodes that were never executed, and totals."""
    ran = {name for result in results for name in result.instructions}
    waves = sum(sum(result.instructions.values()) for result in results)
    failed = [result for result in results if result.problems]
    return [
        *(f"{r.case} on {r.arch}: {problem}" for r in failed for problem in r.problems),
        "loads behind an array, in its block of 256 bytes, that XLA's own kernels don't use: "
        + (", ".join(sorted(_that(results, "loads_beyond"))) or "none"),
        "loads of rows that no expert uses, which nobody wrote: "
        + (", ".join(sorted(_that(results, "loads_unwritten"))) or "none"),
        "barriers of XLA's own kernels with accesses of local memory under way: "
        + (", ".join(sorted(set().union(*(r.unsettled for r in results)))) or "none"),
        "never executed: " + (", ".join(sorted(there(results) - ran)) or "none"),
        f"{len(results)} programs, {sum(bool(r.launches) for r in results)} of them executed, "
        f"{len(failed)} failed; {waves} wave instructions of "
        f"{len(there(results))} opcodes in {seconds:.0f} s",
    ]


def _that(results: Iterable[Checked], count: str) -> set[str]:
    """Return the names of kernels in which this count is not zero."""
    launches = (launch for result in results for launch in result.launches)
    return {name.partition("__")[0] for name, counts in launches if getattr(counts, count)}


def write_record(path: Path, results: Iterable[Checked]) -> None:
    """Write all figures of the executed cases, with wave instructions of each launch by class."""
    lines = [json.dumps(_entry(result)) for result in results if result.launches]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def _entry(result: Checked) -> dict[str, Any]:
    return {
        "case": result.case,
        "gpu": result.arch,
        "problems": list(result.problems),
        "workgroups": result.workgroups,
        "reference": {"error": result.reference, "allowed": result.allowed[0]},
        "interpreted": None
        if isnan(result.allowed[1])
        else {"error": result.interpreted, "allowed": result.allowed[1]},
        "library_share": result.library_share,
        "launches": [
            {
                "kernel": name,
                "workgroups": counts.workgroups,
                "waves": counts.waves,
                "wave_instructions": by_class(counts.instructions),
            }
            for name, counts in result.launches
        ],
    }
