"""The engine configurations that must give equal outputs."""

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    """One engine: k, batch size, with or without draft, with few pages to force preemption.

    `again` repeats the case before it.
    """

    num_speculative_tokens: int
    batch: int
    speculative: bool = True
    exact: bool = False
    few_pages: bool = False
    again: bool = False

    @property
    def name(self) -> str:
        parts = [f"k={self.num_speculative_tokens}", f"batch {self.batch}"]
        parts += ["exact"] * self.exact
        parts += ["plain"] * (not self.speculative)
        parts += ["preempted"] * self.few_pages
        return ", ".join([*parts, *["again"] * self.again])


@dataclass(frozen=True)
class Group:
    """Cases whose answers must equal those of `reference`."""

    reference: Case
    others: tuple[Case, ...]


def full_plan() -> list[Group]:
    """Return the whole matrix: k = 1, 3 and 6, batch 1 and 8."""
    free = [Case(0, 8, speculative=False), *(Case(k, batch) for k in (1, 3, 6) for batch in (1, 8))]
    free += [Case(3, 8, again=True), Case(3, 8, few_pages=True)]
    free += [Case(0, 8, speculative=False, few_pages=True)]
    exact = [exact_group(k, batch) for k, batch in ((1, 8), (6, 8), (3, 1))]
    plain = Case(0, 1, speculative=False)
    return [Group(plain, tuple(free)), *exact, exact_group(3, 8, preempted=True)]


def quick_plan(k: int = 3, batch: int = 4) -> list[Group]:
    """Return one case of each kind."""
    free = (Case(k, batch), Case(k, batch, again=True), Case(k, batch, few_pages=True))
    return [Group(Case(0, 1, speculative=False), free), exact_group(k, batch, preempted=True)]


def exact_group(k: int, batch: int, *, preempted: bool = False) -> Group:
    """Compare speculative with plain decoding at one k and bucket, optionally with few pages."""
    plain = Case(k, batch, speculative=False, exact=True)
    others = [replace(plain, speculative=True)]
    if preempted:
        others += [replace(case, few_pages=True) for case in (*others, plain)]
    return Group(plain, tuple(others))
