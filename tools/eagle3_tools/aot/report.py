"""Report of compiled cases as a table, a list of failures and a JSON file."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.table import Table

from eagle3_tools.aot.check import Checked
from eagle3_tools.aot.target import Target
from pallas_kernels import gpu

_MATRIX = "matrix instructions"


def table(results: Iterable[Checked], target: Target) -> Table:
    """Build a table with a row for each kernel of each case, for one vendor's GPUs."""
    shown = Table(title=f"Compiled by XLA's {target.name} compiler", title_justify="left", box=None)
    _add_columns(shown, ("case", "arch", "kernel"), target, ("temp MiB", "s"))
    shown.add_column("")
    for result in results:
        kernels = sorted(result.kernels, key=lambda kernel: kernel.name)
        for index, kernel in enumerate(kernels or (None,)):
            first = index == 0
            shown.add_row(
                result.case if first else "",
                result.arch if first else "",
                *_kernel_cells(kernel, result, target),
                f"{result.temporary_bytes / 2**20:.1f}" if first else "",
                f"{result.seconds:.1f}" if first else "",
                ("[red]FAILED[/red]" if result.problems else "ok") if first else "",
            )
    return shown


def overview(results: Sequence[Checked], target: Target) -> Table:
    """Build a table with a row for each operation and architecture: the worst of its kernels."""
    shown = Table(title="By operation, the worst of each", title_justify="left", box=None)
    _add_columns(shown, ("operation", "arch"), target, (), ("programs", "failed"))
    grouped: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        grouped.setdefault((result.case.partition(" ")[0], result.arch), []).append(result)
    for (operation, arch), group in grouped.items():
        kernels = [kernel for result in group for kernel in result.kernels]
        figures = [_figures(kernel, arch, target) for kernel in kernels]
        by_column = zip(*figures, strict=True) if figures else [()] * len(target.columns)
        worst = (
            f"{column.worst(values):.0f}" if values else ""
            for column, values in zip(target.columns, by_column, strict=True)
        )
        shown.add_row(
            operation,
            arch,
            f"{len(group)}",
            f"{sum(bool(result.problems) for result in group)}",
            *worst,
            ", ".join(sorted({target.short_name(name) for k in kernels for name in k.matrix})),
        )
    return shown


def _add_columns(
    shown: Table,
    words: Sequence[str],
    target: Target,
    after: Sequence[str],
    before: Sequence[str] = (),
) -> None:
    """Add left-aligned word columns, and right-aligned number columns around the target's."""
    for heading in words:
        shown.add_column(heading, no_wrap=True)
    for heading in (*before, *(column.heading for column in target.columns)):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column(_MATRIX, no_wrap=True)
    for heading in after:
        shown.add_column(heading, justify="right", no_wrap=True)


def _kernel_cells(kernel: Any, result: Checked, target: Target) -> tuple[str, ...]:
    if kernel is None:
        return ("",) * (len(target.columns) + 2)
    figures = _figures(kernel, result.arch, target)
    matrix = (f"{times} {name.removeprefix('mfma.')}" for name, times in kernel.matrix.items())
    return kernel.name, *(f"{figure:.0f}" for figure in figures), ", ".join(matrix)


def _figures(kernel: Any, arch: str, target: Target) -> list[float]:
    return [float(column.value(kernel, gpu.KNOWN[arch])) for column in target.columns]


def summary(results: Sequence[Checked], seconds: float) -> list[str]:
    """Return every failure, then the totals."""
    failed = [result for result in results if result.problems]
    lines = [
        f"FAILED {result.case} {result.arch}: {problem}"
        for result in failed
        for problem in result.problems
    ]
    kernels = sum(len(result.kernels) for result in results)
    return [
        *lines,
        f"{len(results)} programs with {kernels} kernels compiled in {seconds:.0f} s: "
        f"{len(results) - len(failed)} as they must be, {len(failed)} not",
    ]


def write_json(path: str | Path, results: Sequence[Checked]) -> None:
    """Write a record for each case and architecture."""
    records = [asdict(result) for result in results]
    for record in records:
        for kernel in record["kernels"]:
            for code in ("code", "ptx"):
                kernel.pop(code, None)
    Path(path).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
