"""Terminal tables of decode context parallelism and of data parallel attention."""

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
_DATA_PARALLEL_HEADINGS = (
    *("", "\nC", "TP\ntok/s/GPU", "DCP\ntok/s/GPU", "best\nD", "DP attention\ntok/s/GPU"),
    *("times the best\nof TP, DCP", "DP: KV\ntokens", "seqs.\nfit"),
)
PAYS = 1.2
"""Speedup over the best alternative from which another way to serve is worthwhile."""


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


def data_parallel_tables(plan: CapacityPlan) -> Iterator[Table]:
    """Yield a table of all three at each concurrency, if devices hold latents twice."""
    if not plan.data_parallel:
        return
    load, dtype = plan.decode_load, plan.options.kv_cache_dtype
    table = text_table(
        f"Data parallel attention, experts over all devices: rounds of k = {load.drafts}, context "
        f"{load.context:g}, tuned limit; model, not measured",
        _DATA_PARALLEL_HEADINGS,
        left=("",),
    )
    for gpu, other in plan.data_parallel.items():
        name, divided = f"{plan.options.parallel.devices} x {gpu}", plan.divided[gpu]
        for count in plan.options.concurrency:
            rates = {one.parts: one.round(load, count).tokens_per_s for one in divided}
            most = max(rate for parts, rate in rates.items() if parts > 1)
            table.add_row(
                name,
                f"{count}",
                f"{rates[1]:.0f}",
                f"{most:.0f}",
                f"{best_parts(divided, load, count) or 'none fits'}",
                f"{other.round(load, count).tokens_per_s:.0f}",
                f"{_gain(plan, gpu, count):.2f}",
                f"{other.tokens(dtype):,}",
                f"{other.sequences(load):,}",
            )
            name = ""
        table.add_section()
    yield table


def data_parallel_notes(plan: CapacityPlan) -> Iterator[str]:
    """Yield the concurrencies at which it is PAYS times as fast as the best alternative."""
    for gpu in plan.data_parallel:
        paying = [
            f"{count}" for count in plan.options.concurrency if _gain(plan, gpu, count) >= PAYS
        ]
        yield (
            f"{plan.options.parallel.devices} x {gpu}: data parallel attention "
            f"(--data-parallel-size) brings {PAYS:g} times the best of TP and DCP at "
            f"{'C = ' + ', '.join(paying) if paying else 'none of these concurrencies'}."
        )


def _gain(plan: CapacityPlan, gpu: str, concurrency: int) -> float:
    """Return tokens a second relative to the best of TP and DCP; 0 if neither fits."""
    load = plan.decode_load
    best = max(one.round(load, concurrency).tokens_per_s for one in plan.divided[gpu])
    return plan.data_parallel[gpu].round(load, concurrency).tokens_per_s / best if best else 0.0
