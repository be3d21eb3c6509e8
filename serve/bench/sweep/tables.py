"""A sweep as tables for a terminal."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from serve.bench.sweep.rows import Row, rows_of

SPEED = ("output_tput_per_gpu", "tput_per_gpu", "TTFT ms", "TPOT ms", "E2EL ms", "seeds", "failed")
SPOKEN = ("accept length", "accepted by position", "distinct bigrams")
SYNTHETIC = "* synthetic acceptance: throughput only, the answers are not the model's"


def print_sweep(console: Console, results: Sequence[Mapping[str, Any]]) -> None:
    """A line for each configuration, length and concurrency: medians over the seeds."""
    rows = rows_of(results)
    speed = _table("Tokens/s and GPU, and times: medians over seeds of each run's median", SPEED)
    spoken = _table("What drafts gave, and what was said", SPOKEN)
    for row in rows:
        speed.add_row(*place(row), *speed_cells(row))
        spoken.add_row(*place(row), *spoken_cells(row))
    console.print(speed)
    console.print(spoken)
    if any(row.synthetic for row in rows):
        console.print(SYNTHETIC)


def place(row: Row) -> tuple[str, ...]:
    """Where a row was measured; a star: under synthetic acceptance."""
    star = "*" if row.synthetic else ""
    return f"{row.configuration}{star}", f"{row.isl}/{row.osl}", f"{row.concurrency}"


def speed_cells(row: Row) -> tuple[str, ...]:
    """The columns of SPEED."""
    return (
        f"{row.output_tput_per_gpu.median:.1f}",
        f"{row.tput_per_gpu.median:.1f}",
        f"{row.ttft_ms:.1f}",
        f"{row.tpot_ms:.2f}",
        f"{row.e2el_ms:.0f}",
        f"{row.seeds}",
        f"{row.failed}",
    )


def spoken_cells(row: Row) -> tuple[str, ...]:
    """The columns of SPOKEN; a dash for what is not known or made up."""
    positions = " ".join(f"{share:.2f}" for share in row.per_position or ())
    length = row.accept_length
    made_up = " (made up)" if row.synthetic else ""
    return (
        f"{length:.2f}{made_up}" if length else "-",
        positions or "-",
        "-" if row.distinct_bigrams is None else f"{row.distinct_bigrams:.2f}",
    )


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("configuration", no_wrap=True)
    for heading in ("ISL/OSL", "C", *headings):
        table.add_column(heading, justify="right", no_wrap=True)
    return table
