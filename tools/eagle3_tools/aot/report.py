"""Report of compiled cases as tables, a list of failures and a JSON file."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from eagle3_tools.aot.check import Checked
from eagle3_tools.aot.target import Column, Target
from eagle3_tools.checks.check import table_of
from eagle3_tools.checks.record import write_json
from pallas_kernels import gpu

_MATRIX = "matrix instructions"


class _Row(NamedTuple):
    """One kernel of a case, None for a case without kernels. first: whether it is the case's first,
    which also shows the case's own figures."""

    result: Checked
    kernel: Any
    first: bool


def table(results: Iterable[Checked], target: Target) -> Table:
    """Build a table with a row for each kernel of each case, for one vendor's GPUs."""
    rows = []
    for result in results:
        kernels: Sequence[Any] = sorted(result.kernels, key=lambda kernel: kernel.name)
        rows += [_Row(result, kernel, i == 0) for i, kernel in enumerate(kernels or [None])]

    def once(cell: Callable[[Checked], str]) -> Callable[[_Row], str]:
        return lambda row: cell(row.result) if row.first else ""

    def of_kernel(cell: Callable[[Any, str], str]) -> Callable[[_Row], str]:
        return lambda row: "" if row.kernel is None else cell(row.kernel, row.result.arch)

    def figure(column: Column) -> Callable[[_Row], str]:
        return of_kernel(lambda kernel, arch: f"{column.value(kernel, gpu.KNOWN[arch]):.0f}")

    columns = {
        "case": once(lambda result: result.case),
        "arch": once(lambda result: result.arch),
        "kernel": of_kernel(lambda kernel, _: kernel.name),
        **{column.heading: figure(column) for column in target.columns},
        _MATRIX: of_kernel(lambda kernel, _: _counted(kernel.matrix)),
        "temp MiB": once(lambda result: f"{result.temporary_bytes / 2**20:.1f}"),
        "s": once(lambda result: f"{result.seconds:.1f}"),
        "": once(lambda result: "[red]FAILED[/red]" if result.problems else "ok"),
    }
    title = f"Compiled by XLA's {target.name} compiler"
    return table_of(title, columns, rows, left=("case", "arch", "kernel", _MATRIX, ""), box=None)


def overview(results: Sequence[Checked], target: Target) -> Table:
    """Build a table with a row for each operation and architecture: the worst of its kernels."""
    grouped: dict[tuple[str, str], list[Checked]] = {}
    for result in results:
        grouped.setdefault((result.case.partition(" ")[0], result.arch), []).append(result)

    def worst(column: Column) -> Callable[[tuple[str, str]], str]:
        def cell(group: tuple[str, str]) -> str:
            known = gpu.KNOWN[group[1]]
            values = [float(column.value(kernel, known)) for kernel in _kernels(grouped[group])]
            return f"{column.worst(values):.0f}" if values else ""

        return cell

    def instructions(group: tuple[str, str]) -> str:
        used = (name for kernel in _kernels(grouped[group]) for name in kernel.matrix)
        return ", ".join(sorted(set(map(target.short_name, used))))

    columns = {
        "operation": lambda group: group[0],
        "arch": lambda group: group[1],
        "programs": lambda group: f"{len(grouped[group])}",
        "failed": lambda group: f"{sum(bool(result.problems) for result in grouped[group])}",
        **{column.heading: worst(column) for column in target.columns},
        _MATRIX: instructions,
    }
    title, left = "By operation, the worst of each", ("operation", "arch", _MATRIX)
    return table_of(title, columns, grouped, left=left, box=None)


def _kernels(results: Iterable[Checked]) -> list[Any]:
    return [kernel for result in results for kernel in result.kernels]


def _counted(matrix: dict[str, int]) -> str:
    return ", ".join(f"{times} {name.removeprefix('mfma.')}" for name, times in matrix.items())


def summary(results: Sequence[Checked], seconds: float) -> str:
    """Return the totals."""
    failed = sum(bool(result.problems) for result in results)
    return (
        f"{len(results)} programs with {len(_kernels(results))} kernels compiled in {seconds:.0f} "
        f"s: {len(results) - failed} as they must be, {failed} not"
    )


def write_results(path: str | Path, results: Sequence[Checked]) -> None:
    """Write a record for each case and architecture."""
    records = [asdict(result) for result in results]
    for record in records:
        for kernel in record["kernels"]:
            for code in ("code", "ptx"):
                kernel.pop(code, None)
    write_json(path, records, indent=1)
