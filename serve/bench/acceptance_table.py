"""The acceptance of drafts as a table for a terminal."""

from rich.console import Console
from rich.table import Table

from serve.bench.acceptance import UNCERTAIN, AcceptanceRecord

HEADINGS = ("", "drafts", "measured", "computed", "std. error", "off by", "(1-TV)/(1+TV)")
HEADINGS += ("greedy draft", "1-TV", "entropy, nats")


def print_acceptance(console: Console, record: AcceptanceRecord) -> None:
    """One line a category, then the verdict."""
    title = f"Drafts accepted, k={record.num_speculative_tokens}, T={record.temperature:g}"
    table = Table(title=title)
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    for row in record.rows:
        theory, error = row.computed, row.standard_error
        off = f"{(row.measured - theory.coupled) / error:+.1f}" if error else "0"
        values = (row.measured, theory.coupled, error)
        others = (theory.bound, theory.greedy_draft, theory.optimum)
        cells = [*(f"{v:.4f}" for v in values), off, *(f"{v:.4f}" for v in others)]
        table.add_row(row.category, f"{row.drafts}", *cells, f"{theory.entropy:.2f}")
    console.print(table)
    for failure in record.failures:
        console.print(f"FAILED {failure}")
    if record.holds:
        console.print(
            "measured is within 3 standard errors of computed and nowhere below (1-TV)/(1+TV); "
            f"above the greedy draft wherever the entropy is above {UNCERTAIN:g} nat"
        )
