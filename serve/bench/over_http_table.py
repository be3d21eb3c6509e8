"""What HTTP costs as a table for a terminal."""

from rich.console import Console
from rich.table import Table

from serve.bench.over_http import FLOOR, MOST_TTFT_MS, HttpRecord
from serve.bench.over_http_sides import AGAIN, HTTP, OFFLINE

SIDES = (OFFLINE, AGAIN, HTTP)
HEADINGS = (*SIDES, "HTTP : offline", "noise", "TTFT offline, ms", "TTFT HTTP, ms", "overhead, ms")


def print_http(console: Console, record: HttpRecord) -> None:
    """A line for each load, then the verdict."""
    cores = f"engines on core {record.engine_core}, HTTP and client on {record.client_core}"
    k = record.num_speculative_tokens
    title = f"Tokens/s, greedy, k={k}, answers of {record.answer_tokens} tokens; {cores}"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("requests", *HEADINGS):
        table.add_column(heading, justify="right")
    for load in record.loads:
        speeds = (f"{load.tokens_per_s[name].median:.0f}" for name in SIDES)
        times = (f"{load.ttft_ms[name]:.1f}" for name in (OFFLINE, HTTP))
        ratios = (f"{load.share:.3f}", f"{load.noise:.3f}")
        overhead = f"{load.ttft_overhead_ms:+.1f}"
        table.add_row(f"{load.demand}", *speeds, *ratios, *times, overhead)
    console.print(table)
    for load in record.loads:
        promise = (
            f"adds at most {MOST_TTFT_MS:g} ms to the median first token"
            if load.judges_time
            else f"reaches {FLOOR:g} of the offline throughput, noise aside"
        )
        verdict = "HOLDS" if load.holds else "DOES NOT HOLD"
        console.print(f"{load.demand}: HTTP {promise}: {verdict}")
