"""Combine the results of several seeds in one row."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from eagle3_tools.bench.common.spread import Spread

Result = Mapping[str, Any]
TIMES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Row:
    """One configuration, length and concurrency; times are medians over the seeds.

    Throughputs are tokens/s per GPU, of answers (`output_tput_per_gpu`) or prompts and answers.
    Acceptance and diversity are means, None without drafts or with synthetic acceptance.
    """

    configuration: str
    isl: int
    osl: int
    concurrency: int
    seeds: int
    output_tput_per_gpu: Spread
    tput_per_gpu: Spread
    ttft_ms: float
    tpot_ms: float
    e2el_ms: float
    accept_length: float | None
    per_position: tuple[float, ...] | None
    distinct_bigrams: float | None
    synthetic: float | None
    failed: int

    @property
    def intvty(self) -> float:
        """Tokens per second for one user: 1000 / TPOT in ms, InferenceX's interactivity."""
        return 1000 / self.tpot_ms if self.tpot_ms else 0.0


def rows_of(results: Sequence[Result]) -> list[Row]:
    """Return a row for each configuration and load, in order of first appearance."""
    places: dict[tuple[Any, ...], list[Result]] = {}
    for result in results:
        ours, load = result["eagle3"], result["eagle3"]["workload"]
        place = (ours["configuration"], load["isl"], load["osl"], result["max_concurrency"])
        places.setdefault(place, []).append(result)
    return [_row(place, seeds) for place, seeds in places.items()]


def _row(place: tuple[Any, ...], results: Sequence[Result]) -> Row:
    ours = [result["eagle3"] for result in results]
    positions = [o["acceptance_per_position"] for o in ours if o["acceptance_per_position"]]
    times = {
        f"{name}_ms": median(r.get(f"median_{name}_ms", 0.0) for r in results) for name in TIMES
    }
    return Row(
        *place,
        seeds=len(results),
        output_tput_per_gpu=Spread.of([o["output_tput_per_gpu"] for o in ours]),
        tput_per_gpu=Spread.of([o["tput_per_gpu"] for o in ours]),
        **times,
        accept_length=_mean([o["accept_length"] for o in ours]),
        per_position=tuple(map(mean, zip(*positions, strict=True))) or None,
        distinct_bigrams=_mean([o["distinct_bigrams"] for o in ours]),
        synthetic=_mean([o["synthetic_acceptance_length"] for o in ours]),
        failed=sum(o["failed"] for o in ours),
    )


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return mean(known) if known else None


def _accept_length(row: Row) -> str:
    made_up = " (made up)" if row.synthetic else ""
    return f"{row.accept_length:.2f}{made_up}" if row.accept_length else "-"


Columns = Mapping[str, Callable[[Row], str]]
SYNTHETIC = "* synthetic acceptance: throughput only, the answers are not the model's"
PLACE: Columns = {
    # A star marks synthetic acceptance.
    "configuration": lambda row: f"{row.configuration}{'*' if row.synthetic else ''}",
    "ISL/OSL": lambda row: f"{row.isl}/{row.osl}",
    "C": lambda row: f"{row.concurrency}",
}
SPEED: Columns = {
    **PLACE,
    "output_tput_per_gpu": lambda row: f"{row.output_tput_per_gpu.median:.1f}",
    "tput_per_gpu": lambda row: f"{row.tput_per_gpu.median:.1f}",
    "TTFT ms": lambda row: f"{row.ttft_ms:.1f}",
    "TPOT ms": lambda row: f"{row.tpot_ms:.2f}",
    "E2EL ms": lambda row: f"{row.e2el_ms:.0f}",
    "seeds": lambda row: f"{row.seeds}",
    "failed": lambda row: f"{row.failed}",
}
SPOKEN: Columns = {
    **PLACE,
    "accept length": _accept_length,
    "accepted by position": lambda row: (
        " ".join(f"{share:.2f}" for share in row.per_position or ()) or "-"
    ),
    "distinct bigrams": lambda row: (
        "-" if row.distinct_bigrams is None else f"{row.distinct_bigrams:.2f}"
    ),
}
"""Heading -> cell, for terminal and HTML. A dash stands for unknown values."""
