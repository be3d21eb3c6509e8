"""The columns of a sweep's tables, in a terminal and on a page."""

from eagle3_tools.bench.sweep.rows import Row

SPEED = ("output_tput_per_gpu", "tput_per_gpu", "TTFT ms", "TPOT ms", "E2EL ms", "seeds", "failed")
SPOKEN = ("accept length", "accepted by position", "distinct bigrams")
SYNTHETIC = "* synthetic acceptance: throughput only, the answers are not the model's"


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
