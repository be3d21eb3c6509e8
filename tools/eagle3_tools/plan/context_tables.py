"""Terminal tables of decode context parallelism: memory and cost of every size D."""

from collections.abc import Iterator, Mapping, Sequence

from rich.table import Table

from eagle3_tools.plan.model.divided_context import (
    DecodeLoad,
    DividedContext,
    DividedRound,
    best_parts,
    pays_from_concurrency,
    pays_from_context,
)
from eagle3_tools.plan.planner import CapacityPlan
from serve.text_table import text_table

_SHOWN = ("attention", "gather of queries", "exchange of shares", "join of shares")
_HEADINGS = (
    *("", "D", "KV\ntokens", "B a\ntoken", "seqs.\nfit", "decoded", "atten-\ntion ms"),
    *("gather\nqueries", "exchange\nshares", "join\nshares", "rest of\ntarget", "draft\nms"),
    *("round\nms", "tok/s\n/GPU"),
)


def context_tables(plan: CapacityPlan) -> Iterator[Table]:
    """Yield tables of every D at the largest concurrency and the best D at each, if D matters."""
    if plan.divided:
        yield _rounds_table(plan)
        yield _best_table(plan)


def context_notes(plan: CapacityPlan) -> Iterator[str]:
    """Yield the number of requests from which splitting contexts pays, or why it cannot."""
    options, load = plan.options, plan.decode_load
    for gpu, divided in plan.divided.items():
        count = pays_from_concurrency(divided, load)
        yield (
            f"{options.parallel.devices} x {gpu}: at a context of {load.context:g}, dividing it "
            + (f"pays from {count} concurrent requests on." if count else "pays at no concurrency.")
        )
    if options.parallel.devices > 1 and not plan.divided:
        yield (
            "KV heads already divide the cache among the GPUs: --decode-context-parallel-size "
            "changes nothing but how many tokens a page has."
        )


def _rounds_table(plan: CapacityPlan) -> Table:
    load, count = plan.decode_load, plan.options.concurrency[-1]
    table = text_table(
        f"D neighbours divide contexts: a round of k = {load.drafts} at C = {count}, context "
        f"{load.context:g}, tuned limit; model, not measured",
        _HEADINGS,
        left=("",),
    )
    for gpu, divided in plan.divided.items():
        name = f"{plan.options.parallel.devices} x {gpu}"
        for one in divided:
            memory, dtype = one.memory, load.kv_cache_dtype
            table.add_row(
                name if one is divided[0] else "",
                f"{one.parts}",
                f"{memory.tokens(dtype):,}",
                f"{memory.token_bytes(dtype):,.10g}",
                f"{one.sequences(load):,}",
                *_round_cells(one.round(load, count)),
            )
        table.add_section()
    return table


def _round_cells(found: DividedRound) -> tuple[str, ...]:
    def cell(seconds: float) -> str:
        return f"{seconds * 1e3:.2f}"

    target: Mapping[str, float] = found.target_s
    shown = [target.get(part, 0.0) for part in _SHOWN]
    return (
        f"{found.batch} of {found.concurrency}",
        *map(cell, shown),
        cell(sum(target.values()) - sum(shown)),
        cell(sum(found.draft_s.values())),
        cell(found.seconds),
        f"{found.tokens_per_s:.0f}",
    )


def _best_table(plan: CapacityPlan) -> Table:
    load = plan.decode_load
    parts = [one.parts for one in next(iter(plan.divided.values()))]
    rates = (f"D = {part}\ntok/s/GPU" for part in parts)
    table = text_table(
        "The D to choose: most tokens a second of those that fit, the others wait",
        ("", "\nC", *rates, "best\nD", "pays from\ncontext"),
        left=("",),
    )
    for gpu, divided in plan.divided.items():
        name = f"{plan.options.parallel.devices} x {gpu}"
        for count in plan.options.concurrency:
            table.add_row(name, f"{count}", *_best_cells(divided, load, count))
            name = ""
        table.add_section()
    return table


def _best_cells(divided: Sequence[DividedContext], load: DecodeLoad, count: int) -> Iterator[str]:
    for one in divided:
        yield f"{one.round(load, count).tokens_per_s:.0f}"
    yield f"{best_parts(divided, load, count) or 'none fits'}"
    context = pays_from_context(divided, load, count)
    yield "never" if context is None else f"{context:,.0f}"
