"""Results of several seeds as one row."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from eagle3_tools.bench.common.spread import Spread

Result = Mapping[str, Any]
TIMES = ("ttft", "tpot", "e2el")


@dataclass(frozen=True)
class Row:
    """One configuration, length and concurrency. Throughputs are tokens a second and GPU, of the
    answers (`output_tput_per_gpu`) and of prompts and answers (`tput_per_gpu`); times are medians,
    acceptance and diversity means over the seeds, None where nothing is drafted or made up."""

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
        """Tokens a second that one user sees: 1000 / TPOT in ms, InferenceX's interactivity."""
        return 1000 / self.tpot_ms if self.tpot_ms else 0.0


def rows_of(results: Sequence[Result]) -> list[Row]:
    """A row for every place, in the order in which places first come."""
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
