"""A check of many programs: jobs in a pool of processes, a table of their reports, violations."""

import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, Generic, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from eagle3_tools.checks.pool import Failure, run_each

Job = TypeVar("Job")
Report = TypeVar("Report")
Row = TypeVar("Row")


@dataclass(frozen=True)
class Check(Generic[Job, Report]):
    """A family of programs, and the expectations and table columns of their reports.

    Attributes:
        name: Title of the table.
        build: Lists the jobs for a command's flags.
        run: Reports on a job, in a process of the pool. It must be at a module's top level.
        expect: Lists the violations of a report; each is a failure.
        columns: Heading -> cell of a report.
        label: Name of a job in failures.
        heads: Heading -> cell of a job, before the columns.
        reuse: Whether a process runs several jobs. Peak memory is a job's own only without it.
    """

    name: str
    build: Callable[[Namespace], Iterable[Job]]
    run: Callable[[Job], Report]
    columns: Mapping[str, Callable[[Report], str]]
    label: Callable[[Job], str]
    heads: Mapping[str, Callable[[Job], str]] = field(default_factory=dict)
    expect: Callable[[Report], Iterable[str]] = attrgetter("failures")
    reuse: bool = False

    def results(
        self, jobs: Sequence[Job], limit_s: float, processes: int = 1
    ) -> list[Report | Failure]:
        """Run the jobs, each for at most `limit_s` seconds, and return results in their order.

        Shows its progress on a terminal.
        """
        with Progress(console=Console(stderr=True), transient=True) as progress:
            running = run_each(
                self.run, jobs, processes=processes, limit_s=limit_s, reuse=self.reuse
            )
            return list(progress.track(running, len(jobs)))

    def table(self, jobs: Sequence[Job], results: Sequence[Report | Failure]) -> Table:
        """Return a row for each job; one without a report has FAILED in place of the columns."""

        def cell(column: Callable[[Report], str], result: Report | Failure) -> str:
            if not isinstance(result, Failure):
                return column(result)
            return "FAILED" if column is next(iter(self.columns.values())) else ""

        heads = {name: lambda row, of=of: of(row[0]) for name, of in self.heads.items()}
        columns = {name: lambda row, of=of: cell(of, row[1]) for name, of in self.columns.items()}
        rows = zip(jobs, results, strict=True)
        return table_of(self.name, heads | columns, rows, left=self.heads)

    def failures(self, jobs: Iterable[Job], results: Iterable[Report | Failure]) -> Iterator[str]:
        """Yield a line for each job without a report, and for each violation of the others."""
        for job, result in zip(jobs, results, strict=True):
            found = [f"{result}"] if isinstance(result, Failure) else self.expect(result)
            yield from (f"FAILED {self.label(job)}: {reason}" for reason in found)

    def print(
        self, console: Console, jobs: Sequence[Job], results: Sequence[Report | Failure]
    ) -> bool:
        """Print the table and the failures; return whether there are none."""
        console.print(self.table(jobs, results))
        failures = list(self.failures(jobs, results))
        print_lines(console, failures)
        return not failures


def table_of(
    title: str,
    columns: Mapping[str, Callable[[Row], str]],
    rows: Iterable[Row],
    *,
    left: Collection[str] = (),
    **style: Any,
) -> Table:
    """Return a table with a row for each of `rows`; columns not in `left` are right-aligned.

    `style` goes to `rich.table.Table`.
    """
    table = Table(title=title, title_justify="left", title_style="bold", **style)
    for heading in columns:
        align = "left" if heading in left else "right"
        table.add_column(heading, justify=align, no_wrap=heading in left)
    for row in rows:
        table.add_row(*(cell(row) for cell in columns.values()))
    return table


def print_lines(console: Console, lines: Iterable[str]) -> None:
    """Print lines as they are, however long."""
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def console_of(width: int = 150) -> Console:
    """Return standard output; where it is not a terminal, tables have at most `width` columns."""
    return Console(width=None if sys.stdout.isatty() else width)
