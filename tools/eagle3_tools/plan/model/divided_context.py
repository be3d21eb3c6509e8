"""Decode context parallelism: capacity and cost of each size, and the load from which it pays."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from eagle3_tools.plan.model.draft_work import draft_work
from eagle3_tools.plan.model.kernels import Bound, Work, seconds_of_parts
from eagle3_tools.plan.model.memory import ITEMSIZE, Memory
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.target_work import StepRows, target_work

PARTS = (1, 2, 4, 8)
"""Sizes that are compared, of those that divide the number of devices."""
BOUND = "tuned"
MOST_CONCURRENT = 1 << 14
"""Largest concurrency to search."""


@dataclass(frozen=True)
class DecodeLoad:
    """Load of decoding: rounds of `drafts` drafts (0 without a draft) that yield accept_length
    tokens, for sequences of up to isl + osl tokens. longest: the model's limit."""

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
        """Mean KV tokens of a sequence while it is decoded."""
        return self.isl + self.osl / 2


@dataclass(frozen=True)
class DividedRound:
    """A round of the `batch` of `concurrency` requests that fit; the others wait.

    target_s, draft_s: seconds by part of the work; draft_s is empty without a draft.
    """

    concurrency: int
    batch: int
    target_s: Mapping[str, float]
    draft_s: Mapping[str, float]
    tokens_per_s: float

    @property
    def seconds(self) -> float:
        return sum(self.target_s.values()) + sum(self.draft_s.values())


@dataclass(frozen=True)
class DividedContext:
    """A pair on devices of which groups of `parts` split contexts."""

    parts: int
    memory: Memory
    shapes: Shapes

    def tokens(self, kv_cache_dtype: str) -> int:
        return self.memory.tokens(kv_cache_dtype)

    def sequences(self, load: DecodeLoad) -> int:
        """Return the number of the load's sequences that fit."""
        return self.memory.sequences(load.length, load.kv_cache_dtype)

    def target_work(self, rows: StepRows) -> Iterator[Work]:
        return target_work(self.shapes.target, rows)

    def own(self, rows: StepRows) -> StepRows:
        return rows

    def round(self, load: DecodeLoad, concurrency: int, bound: Bound = BOUND) -> DividedRound:
        """Return a round of the load; if no sequence fits, it takes no time."""
        batch = min(concurrency, self.sequences(load))
        if not batch:
            return DividedRound(concurrency, 0, {}, {}, 0.0)
        shapes, itemsize = self.shapes, ITEMSIZE[load.kv_cache_dtype]
        rows = StepRows(batch, load.drafts + 1, load.context, itemsize)
        target_s = seconds_of_parts(self.target_work(rows), shapes.gpu, bound)
        drafted = draft_work(shapes.draft, load.drafts, self.own(rows)) if shapes.draft else ()
        draft_s = seconds_of_parts(drafted, shapes.gpu, bound)
        total = sum(target_s.values()) + sum(draft_s.values())
        rate = load.accept_length * batch / total / shapes.target.parallel.devices
        return DividedRound(concurrency, batch, target_s, draft_s, rate)


def best_parts(divided: Sequence[DividedContext], load: DecodeLoad, concurrency: int) -> int:
    """Return the size with most tokens a second, the smallest of equals; 0 if no sequence fits."""
    rates = {one.parts: one.round(load, concurrency).tokens_per_s for one in divided}
    return max(rates, key=lambda parts: (rates[parts], -parts)) if any(rates.values()) else 0


def pays_from_concurrency(divided: Sequence[DividedContext], load: DecodeLoad) -> int | None:
    """Return the fewest concurrent requests for which splitting pays, up to MOST_CONCURRENT."""
    return first_number(lambda count: best_parts(divided, load, count) > 1, 1, MOST_CONCURRENT)


def pays_from_context(
    divided: Sequence[DividedContext], load: DecodeLoad, concurrency: int
) -> float | None:
    """Return the shortest context in tokens for which splitting pays at this concurrency, None if
    it pays for none that the model supports."""

    def pays(isl: int) -> bool:
        return best_parts(divided, replace(load, isl=isl), concurrency) > 1

    isl = first_number(pays, 1, load.longest - load.osl)
    return None if isl is None else replace(load, isl=isl).context


def first_number(holds: Callable[[int], bool], least: int, most: int) -> int | None:
    """Return the first number of least..most that satisfies `holds`, by doubling and bisection."""
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
