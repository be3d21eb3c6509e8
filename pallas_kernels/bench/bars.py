"""What the kernels are meant to reach, and whether they do."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pallas_kernels.bench.measure import Measured


@dataclass(frozen=True)
class Bar:
    """value must be `least` or more; case: the worst of those that it is for."""

    text: str
    least: float
    case: str
    value: float

    @property
    def met(self) -> bool:
        return self.value >= self.least


def bars(results: Sequence[Measured]) -> list[Bar]:
    """Every bar that some result speaks to, each with the case that is worst."""
    found: dict[str, Bar] = {}
    for bar in _all(results):
        if bar.text not in found or bar.value < found[bar.text].value:
            found[bar.text] = bar
    return list(found.values())


def _all(results: Sequence[Measured]) -> Iterator[Bar]:
    timed = {result.case: result for result in results if result.timed}
    for result in timed.values():
        yield from _attention(result, timed)
        yield from _experts(result)
        if result.operation == "logits_argmax":
            yield Bar("logits_argmax: 0.8 of the floor", 0.8, result.case, result.share)
        if (against := result.against("torch.matmul")) is not None:
            yield Bar("bf16 product: 0.9 of torch.matmul", 0.9, result.case, against)
        against = result.against("torch._scaled_mm")
        if against is not None and _rows(result) <= 64:
            yield Bar("fp8 product, 64 rows at most: torch._scaled_mm", 1.0, result.case, against)


def _attention(result: Measured, timed: dict[str, Measured]) -> Iterator[Bar]:
    if result.operation != "mla_decode" or "_8k" not in result.case:
        return
    yield Bar("mla_decode, 128K tokens: 0.6 of the floor", 0.6, result.case, result.share)
    single = timed.get(result.case.replace(" q4_", " q1_"))
    if " q4_" in result.case and "@tp1" not in result.case and single is not None:
        assert result.timed and single.timed
        ratio = single.timed.us.median / result.timed.us.median
        yield Bar("mla_decode: 4 rows cost 1.15 of one", 1 / 1.15, result.case, ratio)


def _experts(result: Measured) -> Iterator[Bar]:
    if result.operation != "grouped_mlp":
        return
    tokens = _rows(result)
    if tokens >= 8:
        yield Bar("grouped_mlp, 8 tokens on: 0.65 of the floor", 0.65, result.case, result.share)
    against = result.against("torch._grouped_mm")
    if tokens <= 64 and against is not None:
        yield Bar("grouped_mlp, 64 tokens at most: 2x torch._grouped_mm", 2.0, result.case, against)


def _rows(result: Measured) -> int:
    """`rows16` or `tokens16` of the case's name."""
    found = re.search(r"\b(?:rows|tokens)(\d+)", result.case)
    return int(found[1]) if found else 0
