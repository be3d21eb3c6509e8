"""Terminal table of data parallel attention, tensor parallelism and decode context parallelism."""

from collections.abc import Iterator

from rich.table import Table

from eagle3_tools.plan.model.divided_context import best_parts
from eagle3_tools.plan.planner import CapacityPlan
from serve.text_table import text_table

PAYS = 1.2
"""Speedup over the best alternative from which another way to serve is worthwhile."""
_HEADINGS = (
    *("", "\nC", "TP\ntok/s/GPU", "DCP\ntok/s/GPU", "best\nD", "DP attention\ntok/s/GPU"),
    *("times the best\nof TP, DCP", "DP: KV\ntokens", "seqs.\nfit"),
)


def data_parallel_tables(plan: CapacityPlan) -> Iterator[Table]:
    """Yield a table of all three at each concurrency, if devices hold latents twice."""
    if not plan.data_parallel:
        return
    load, dtype = plan.decode_load, plan.options.kv_cache_dtype
    table = text_table(
        f"Data parallel attention, experts over all devices: rounds of k = {load.drafts}, context "
        f"{load.context:g}, tuned limit; model, not measured",
        _HEADINGS,
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
