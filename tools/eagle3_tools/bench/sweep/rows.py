"""Combine the results of several seeds in one row."""

from collections.abc import Mapping, Sequence
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


SPEED = ("output_tput_per_gpu", "tput_per_gpu", "TTFT ms", "TPOT ms", "E2EL ms", "seeds", "failed")
SPOKEN = ("accept length", "accepted by position", "distinct bigrams")
SYNTHETIC = "* synthetic acceptance: throughput only, the answers are not the model's"


def place(row: Row) -> tuple[str, ...]:
    """Return the cells that name the run; a star marks synthetic acceptance."""
    star = "*" if row.synthetic else ""
    return f"{row.configuration}{star}", f"{row.isl}/{row.osl}", f"{row.concurrency}"


def speed_cells(row: Row) -> tuple[str, ...]:
    """Return the cells of SPEED."""
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
    """Return the cells of SPOKEN, with a dash for unknown values."""
    positions = " ".join(f"{share:.2f}" for share in row.per_position or ())
    length = row.accept_length
    made_up = " (made up)" if row.synthetic else ""
    return (
        f"{length:.2f}{made_up}" if length else "-",
        positions or "-",
        "-" if row.distinct_bigrams is None else f"{row.distinct_bigrams:.2f}",
    )
