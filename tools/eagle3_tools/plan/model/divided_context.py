"""Decode context parallelism: what each number of neighbours that divide contexts holds and costs,
and from which load on dividing them pays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from eagle3_tools.plan.model.draft_work import draft_work
from eagle3_tools.plan.model.kernels import seconds_of_parts
from eagle3_tools.plan.model.memory import ITEMSIZE, Memory
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import StepRows, target_work

PARTS = (1, 2, 4, 8)
"""Neighbours that are compared, of those that divide the devices."""
BOUND = "tuned"
MOST_CONCURRENT = 1 << 14
"""Beyond, nobody asks from where on it pays."""


@dataclass(frozen=True)
class DecodeLoad:
    """What is decoded: rounds of so many drafts (0 without a draft), of which each brings
    accept_length tokens, for sequences of at most isl + osl tokens. longest: of the model's."""

    isl: int
    osl: int
    longest: int
    kv_cache_dtype: str
    drafts: int
    accept_length: float

    @property
    def length(self) -> int:
        """Tokens of a sequence at its end."""
        return self.isl + self.osl

    @property
    def context(self) -> float:
        """Mean tokens of KV a sequence has while it is decoded."""
        return self.isl + self.osl / 2


@dataclass(frozen=True)
class DividedRound:
    """A round of those of `concurrency` requests that fit, `batch`; the others wait.

    target_s, draft_s: seconds by part of the work, no draft_s without one.
    """

    concurrency: int
    batch: int
    target_s: Mapping[str, float]
    draft_s: Mapping[str, float]
    tokens_per_s: float

    @property
    def seconds(self) -> float:
        """Of the whole round."""
        return sum(self.target_s.values()) + sum(self.draft_s.values())


@dataclass(frozen=True)
class DividedContext:
    """A pair on devices of which `parts` neighbours divide contexts among them."""

    parts: int
    memory: Memory
    shapes: Shapes

    def sequences(self, load: DecodeLoad) -> int:
        """How many of the load's fit."""
        return self.memory.sequences(load.length, load.kv_cache_dtype)

    def round(self, load: DecodeLoad, concurrency: int) -> DividedRound:
        """Of the load; of no sequence, where none fits, it takes no time."""
        batch = min(concurrency, self.sequences(load))
        if not batch:
            return DividedRound(concurrency, 0, {}, {}, 0.0)
        shapes, itemsize = self.shapes, ITEMSIZE[load.kv_cache_dtype]
        rows = StepRows(batch, load.drafts + 1, load.context, itemsize)
        target_s = seconds_of_parts(target_work(shapes.target, rows), shapes.gpu, BOUND)
        drafted = draft_work(shapes.draft, load.drafts, rows) if shapes.draft else ()
        draft_s = seconds_of_parts(drafted, shapes.gpu, BOUND)
        total = sum(target_s.values()) + sum(draft_s.values())
        rate = load.accept_length * batch / total / shapes.target.parallel.devices
        return DividedRound(concurrency, batch, target_s, draft_s, rate)


def best_parts(divided: Sequence[DividedContext], load: DecodeLoad, concurrency: int) -> int:
    """Those with most tokens a second, the fewest of several; 0 where no sequence fits."""
    rates = {one.parts: one.round(load, concurrency).tokens_per_s for one in divided}
    return max(rates, key=lambda parts: (rates[parts], -parts)) if any(rates.values()) else 0


def pays_from_concurrency(divided: Sequence[DividedContext], load: DecodeLoad) -> int | None:
    """Fewest concurrent requests of this length for which dividing contexts pays, None beyond
    MOST_CONCURRENT."""
    return first_number(lambda count: best_parts(divided, load, count) > 1, 1, MOST_CONCURRENT)


def pays_from_context(
    divided: Sequence[DividedContext], load: DecodeLoad, concurrency: int
) -> float | None:
    """Shortest context, in tokens, for which dividing it pays at this concurrency, None where it
    does for none that the model has."""

    def pays(isl: int) -> bool:
        return best_parts(divided, replace(load, isl=isl), concurrency) > 1

    isl = first_number(pays, 1, load.longest - load.osl)
    return None if isl is None else replace(load, isl=isl).context


def first_number(holds: Callable[[int], bool], least: int, most: int) -> int | None:
    """The first number of least..most for which it holds, found among doubled numbers and then
    between two of them."""
    below = least - 1
    for number in _doubled(least, most):
        if holds(number):
            above = number
            while above - below > 1:
                middle = (above + below) // 2
                below, above = (below, middle) if holds(middle) else (middle, above)
            return above
        below = number
    return None


def _doubled(least: int, most: int) -> Iterator[int]:
    number = least
    while number < most:
        yield number
        number *= 2
    yield most
