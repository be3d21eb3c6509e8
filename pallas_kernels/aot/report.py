"""What was compiled, as a table, a list of failures and a JSON file."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from pallas_kernels.aot.check import Checked
from pallas_kernels.aot.code_object import GpuKernel

_COLUMNS = ("VGPRs", "SGPR spills", "LDS KiB", "waves", "matrix instructions", "temp MiB", "s")


def table(results: Iterable[Checked]) -> Table:
    """A line for each kernel of each case."""
    shown = Table(title="Compiled by XLA's ROCm compiler", title_justify="left", box=None)
    for heading in ("case", "arch", "kernel", *_COLUMNS, ""):
        numbers = heading in _COLUMNS and not heading.startswith("matrix")
        shown.add_column(heading, justify="right" if numbers else "left", no_wrap=True)
    for result in results:
        kernels = sorted(result.kernels, key=lambda kernel: kernel.name)
        for index, kernel in enumerate(kernels or (None,)):
            first = index == 0
            shown.add_row(
                result.case if first else "",
                result.arch if first else "",
                *_kernel_cells(kernel, result),
                f"{result.temporary_bytes / 2**20:.1f}" if first else "",
                f"{result.seconds:.1f}" if first else "",
                ("[red]FAILED[/red]" if result.problems else "ok") if first else "",
            )
    return shown


def _kernel_cells(kernel: GpuKernel | None, result: Checked) -> tuple[str, ...]:
    if kernel is None:
        return ("",) * 6
    matrix = ", ".join(
        f"{times} {name.removeprefix('mfma.')}" for name, times in kernel.matrix.items()
    )
    return (
        kernel.name,
        f"{kernel.vgprs}",
        f"{kernel.sgpr_spills or ''}",
        f"{kernel.lds_bytes / 1024:.0f}",
        f"{result.waves_of(kernel)}",
        matrix,
    )


def overview(results: Sequence[Checked]) -> Table:
    """A line for each operation and architecture: the worst of all its kernels."""
    shown = Table(title="By operation, the worst of each", title_justify="left", box=None)
    for heading in ("operation", "arch", "programs", "failed", *_COLUMNS[:4], _COLUMNS[4]):
        words = heading in ("operation", "arch", _COLUMNS[4])
        shown.add_column(heading, justify="left" if words else "right", no_wrap=True)
    grouped: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        grouped.setdefault((result.case.partition(" ")[0], result.arch), []).append(result)
    for (operation, arch), group in grouped.items():
        kernels = [(result, kernel) for result in group for kernel in result.kernels]
        shown.add_row(
            operation,
            arch,
            f"{len(group)}",
            f"{sum(bool(result.problems) for result in group)}",
            f"{max((k.vgprs for _, k in kernels), default=0)}",
            f"{max((k.sgpr_spills for _, k in kernels), default=0)}",
            f"{max((k.lds_bytes for _, k in kernels), default=0) / 1024:.0f}",
            f"{min((result.waves_of(k) for result, k in kernels), default=0)}",
            ", ".join(sorted({_plain(name) for _, k in kernels for name in k.matrix})),
        )
    return shown


def _plain(instruction: str) -> str:
    """mfma.scale.f32.16x16x128.f8f6f4.v8i32.v8i32 -> scale.f8f6f4."""
    parts = instruction.split(".")
    scale = ["scale"] if "scale" in parts else []
    types = [found[0] for part in parts if (found := re.search(r"(b?fp?\d\w*|i8)$", part))]
    return ".".join([*scale, types[-1] if types else instruction])


def summary(results: Sequence[Checked], seconds: float) -> list[str]:
    """Every failure, then how many there are."""
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
    """All of it, a record for each case and architecture."""
    records = [asdict(result) for result in results]
    Path(path).write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
