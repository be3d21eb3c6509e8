"""Performance goals of the kernels, and whether results reach them."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from eagle3_tools.kernel_bench.measure import GIVEN_ROWS, Measured

SCALED = "torch._scaled_mm"


@dataclass(frozen=True)
class Bar:
    """A goal: `value` must be at least `least`. `case` is the worst of its cases."""

    text: str
    least: float
    case: str
    value: float

    @property
    def met(self) -> bool:
        return self.value >= self.least


def bars(results: Sequence[Measured]) -> list[Bar]:
    """Return every goal that has results, with its worst case."""
    found: dict[str, Bar] = {}
    for bar in _all(results):
        if bar.text not in found or bar.value < found[bar.text].value:
            found[bar.text] = bar
    return list(found.values())


def _all(results: Sequence[Measured]) -> Iterator[Bar]:
    timed = {result.case: result for result in results if result.timed}
    for result in timed.values():
        yield from _shares(result)
        yield from _experts(result)
        yield from _products(result)
        yield from _verify(result, timed)


def _shares(result: Measured) -> Iterator[Bar]:
    """Yield goals relative to floors, if these are known. At TP 1, attention is compute-bound."""
    if not result.floor_us:
        return
    if result.operation == "mla_decode" and "_8k" in result.case and "@tp1" not in result.case:
        yield Bar("mla_decode, 128K tokens: 0.6 of the floor", 0.6, result.case, result.share)
    if result.operation == "grouped_mlp" and _rows(result) >= 8:
        yield Bar("grouped_mlp, 8 tokens on: 0.65 of the floor", 0.65, result.case, result.share)
    if result.operation == "logits_argmax":
        yield Bar("logits_argmax: 0.8 of the floor", 0.8, result.case, result.share)


def _verify(result: Measured, timed: dict[str, Measured]) -> Iterator[Bar]:
    if result.operation != "mla_decode" or "_8k" not in result.case:
        return
    single = timed.get(result.case.replace(" q4_", " q1_"))
    if " q4_" in result.case and "@tp1" not in result.case and single is not None:
        assert result.timed and single.timed
        ratio = single.timed.us.median / result.timed.us.median
        yield Bar("mla_decode: 4 rows cost 1.15 of one", 1 / 1.15, result.case, ratio)


def _experts(result: Measured) -> Iterator[Bar]:
    against = result.against("torch._grouped_mm")
    if result.operation == "grouped_mlp" and _rows(result) <= 64 and against is not None:
        yield Bar("grouped_mlp, 64 tokens at most: 2x torch._grouped_mm", 2.0, result.case, against)


def _products(result: Measured) -> Iterator[Bar]:
    """Yield goals of products; float8 both with and without quantising x in the timed part."""
    if (against := result.against("torch.matmul")) is not None:
        yield Bar("bf16 product: 0.9 of torch.matmul", 0.9, result.case, against)
    if result.operation != "fp8_matmul" or _rows(result) > 64:
        return
    inside = result.against(f"{SCALED} with quantising")
    before = result.against(SCALED, GIVEN_ROWS)
    for how, against in (("quantising inside", inside), ("quantised before", before)):
        if against is not None:
            text = f"fp8 product, 64 rows at most, {how}: {SCALED}"
            yield Bar(text, 1.0, result.case, against)


def _rows(result: Measured) -> int:
    """Parse `rows16` or `tokens16` in the case's name."""
    found = re.search(r"\b(?:rows|tokens)(\d+)", result.case)
    return int(found[1]) if found else 0
