"""What the tables of all studies share."""

from rich.console import Console
from rich.table import Table

from serve.bench.common.conditions import Conditions
from serve.bench.common.spread import Spread


def print_conditions(console: Console, found: Conditions, repetitions: int | None = None) -> None:
    """Where and when, in two lines."""
    core = "not pinned" if found.pinned_core is None else f"pinned to core {found.pinned_core}"
    repeated = f", median of {repetitions}" if repetitions else ""
    console.print(f"{found.cpu}, {found.cores} cores, {core}, load {found.load_average}{repeated}")
    versions = ", ".join(f"{name} {version}" for name, version in found.versions.items())
    console.print(f"{found.date}, Python {found.python}, {versions}")


def titled(title: str) -> Table:
    """An empty table."""
    return Table(title=title, title_justify="left", title_style="bold")


def milliseconds(spread: Spread) -> str:
    """Median and best."""
    return f"{spread.median * 1e3:.2f} (best {spread.best * 1e3:.2f})"
