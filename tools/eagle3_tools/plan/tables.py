"""Terminal tables of a plan."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from eagle3_jax.layers.split_context import GATHERED_SLOTS
from eagle3_tools.checks.check import print_lines
from eagle3_tools.plan.context_tables import (
    context_notes,
    context_tables,
    data_parallel_notes,
    data_parallel_tables,
)
from eagle3_tools.plan.data.gpus import GIB, GPUS, SOURCES
from eagle3_tools.plan.data.tuned import Tuned
from eagle3_tools.plan.model.host_memory import HostMemory
from eagle3_tools.plan.model.kernels import BOUNDS, Bound
from eagle3_tools.plan.model.limits import Limit
from eagle3_tools.plan.model.memory import ITEMSIZE, Memory
from eagle3_tools.plan.model.published_rows import Compared
from eagle3_tools.plan.model.rounds import Load
from eagle3_tools.plan.options import PlanOptions
from eagle3_tools.plan.planner import CapacityPlan
from serve.text_table import text_table


def host_table(host: HostMemory) -> Table:
    table = text_table(
        f"Host memory of {host.nbytes / 2**30:,.0f} GiB holds {host.tokens:,} tokens of "
        f"{host.token_bytes:,} B; a prefix from there, or run again in chunks of {host.chunk}; "
        "model, not measured",
        ("", "prefix", "GB", "load, one\nlink, ms", "all links\nms", "prefill\nms", "times"),
        left=("",),
    )
    for gpu, shapes in host.shapes.items():
        devices = shapes.target.parallel.devices
        name = f"{devices} x {gpu}"
        for tokens in host.prefixes:
            one, every = (host.load_s(tokens, links) for links in (1, devices))
            again = host.prefill_s(gpu, tokens)
            cells = (one * 1e3, every * 1e3, again * 1e3)
            size = f"{tokens * host.token_bytes / 1e9:.2f}"
            shown = (f"{cell:,.1f}" for cell in cells)
            table.add_row(name, f"{tokens:,}", size, *shown, f"{again / every:,.0f}")
            name = ""
        table.add_section()
    return table


def host_note(host: HostMemory, gpu: str) -> str:
    return (
        f"{gpu}: loading pays from {host.least_tokens(gpu):,} tokens on "
        "(--kv-offloading-min-tokens), with a step's wait; model, not measured."
    )


_TITLES: dict[Bound, str] = {
    "datasheet": "Datasheet limit: bytes and FLOP at datasheet rates, launches free",
    "tuned": "Tuned kernels: the best published ones, back to back; no host, no gaps, no prefill",
}

MODELLED = "Our own kernels by the model of their code: model, not measured; no host, no prefill"


def print_plan(console: Console, plan: CapacityPlan, compared: Sequence[Compared]) -> None:
    """Print memory, 32-bit limits, speed under both limits, and published figures."""
    console.print(_memory_table(plan.memory, plan.options))
    console.print(_fits_table(plan))
    console.print(_limits_table(plan.limits))
    for title, loads in _tables_of_loads(plan):
        console.print(_loads_table(plan, title, loads))
    if plan.lookups:
        console.print(_lookup_table(plan))
    for table in (*context_tables(plan), *data_parallel_tables(plan)):
        console.print(table)
    console.print(host_table(plan.host))
    print_lines(console, _notes(plan))
    console.print(_published_table(compared))
    sources = dict.fromkeys(row.setup.source for row in compared)
    print_lines(console, (f"[{number}] {source}" for number, source in enumerate(sources, 1)))


def print_constants(console: Console) -> None:
    table = text_table("Constants", ("", *GPUS), left=("",))
    gpus = GPUS.values()
    table.add_row("memory, GiB", *(f"{gpu.memory / GIB:.1f}" for gpu in gpus))
    table.add_row("HBM, TB/s", *(f"{gpu.bandwidth / 1e12:g}" for gpu in gpus))
    for name, kind in (("bfloat16", "none"), ("fp8, int8", "fp8_token"), ("MXFP4", "mxfp4")):
        rates = (f"{gpu.rate(kind) / 1e15:g}" for gpu in gpus)
        table.add_row(f"{name}, PFLOP/s", *rates)
    table.add_row("to one peer, GB/s", *(f"{gpu.peer_link / 1e9:g}" for gpu in gpus))
    table.add_row("to all peers, GB/s", *(f"{gpu.all_links / 1e9:g}" for gpu in gpus))
    for kind in GPUS["MI355X"].tuned:
        found = (gpu.tuned[kind] for gpu in gpus)
        table.add_row(f"{kind}: us, of HBM, of peak", *map(_tuned, found))
        own = (gpu.modelled[kind] if gpu.published else None for gpu in gpus)
        table.add_row("  our kernels, by the model", *(_tuned(t) if t else "" for t in own))
    sums = (gpu.all_reduce for gpu in gpus)
    table.add_row(
        "all-reduce: us, of links", *(f"{t.seconds * 1e6:g}, {t.of_bandwidth:g}" for t in sums)
    )
    console.print(table)
    print_lines(console, (f"{name}: {source}" for name, source in SOURCES))


def _tuned(kernel: Tuned) -> str:
    return f"{kernel.seconds * 1e6:.3g}, {kernel.of_bandwidth:.2g}, {kernel.of_peak:g}"


def _lookup_table(plan: CapacityPlan) -> Table:
    tokens = plan.options.num_lookup_tokens
    table = text_table(
        f"Lookup of up to {tokens} tokens: reads of the histories at the memory's bandwidth, and "
        "verification as wide as the drafts or the lookup; model, not measured",
        ("C", "histories, MB", "lookup, us", "narrow, ms", "wide, ms", "wide / narrow"),
    )
    for cost in plan.lookups:
        table.add_row(
            f"{cost.concurrency}",
            f"{cost.history_bytes / 1e6:.2f}",
            f"{cost.lookup_s * 1e6:.1f}",
            f"{cost.narrow_s * 1e3:.2f}",
            f"{cost.wide_s * 1e3:.2f}",
            f"{cost.wide_s / cost.narrow_s:.2f}",
        )
    return table


def _memory_table(memory: Memory, options: PlanOptions) -> Table:
    devices = options.parallel.devices
    table = text_table(f"Memory of each of {devices} x {memory.gpu}")
    table.show_header = False
    for justify in ("left", "right", "left"):
        table.add_column(justify=justify)
    share = f"{options.gpu_memory_utilization:g} of {memory.total / GIB:.1f}"
    table.add_row("may be used", _gib(memory.usable), share)
    table.add_row("target", _gib(memory.target.device_nbytes), _whole(memory.target.nbytes))
    for part, nbytes in memory.target.by_part.items():
        if nbytes >= GIB / 100:
            table.add_row(f"  {part}", _gib(nbytes), "")
    if memory.draft:
        table.add_row("draft", _gib(memory.draft.device_nbytes), _whole(memory.draft.nbytes))
    if memory.vision:
        size = memory.vision.device_nbytes
        table.add_row("vision tower and projector", _gib(size), f"{size:,} B, whole on each")
    kept = ", features of images" if memory.vision else ""
    kept += ", token histories" if options.num_lookup_tokens else ""
    slots = f"{options.max_num_seqs} slots"
    table.add_row(f"slots, their options{kept}", _gib(memory.state), slots)
    table.add_row("left for KV", _gib(memory.for_pools), "")
    if gathered := memory.gathered_bytes:
        said = f"{GATHERED_SLOTS:,} slots of a context at most, a temporary"
        table.add_row("gathered and expanded at prefill", _gib(gathered), said)
    if memory.encoding_bytes:
        table.add_row("encoding the largest image", _gib(memory.encoding_bytes), "a temporary")
    for dtype in ITEMSIZE:
        table.add_section()
        each, tokens = memory.token_bytes(dtype), memory.tokens(dtype)
        table.add_row(f"KV tokens, {dtype}", f"{tokens:,}", f"{each:,.10g} B a token on each GPU")
        pages = max(0, memory.pages(dtype) - 1)
        table.add_row(
            f"  pages of {memory.page_tokens:,} tokens", f"{pages:,}", "and one of scratch"
        )
        for length in sorted({options.isl + options.osl, options.max_model_len}):
            count = f"{memory.sequences(length, dtype):,}"
            table.add_row(f"  sequences of {length:,} tokens", count, "")
    return table


def _fits_table(plan: CapacityPlan) -> Table:
    options = plan.options
    length, dtype = options.max_model_len, options.kv_cache_dtype
    headings = ("", "GPUs", f"KV tokens, {dtype}")
    table = text_table(f"Least GPUs for {length:,} tokens", headings, left=("",))
    found = {fit.gpu: fit for fit in plan.fits}
    for name in GPUS:
        fit = found.get(name)
        cells = (f"{fit.devices}", f"{fit.tokens:,}") if fit else ("none", "")
        table.add_row(name, *cells)
    return table


def _limits_table(limits: Iterable[Limit]) -> Table:
    title = "What 32 bits hold (2^31), on each GPU, with pools as large as they can be"
    headings = ("", "count", "32 bits", "reached at tokens of KV", "the engine")
    table = text_table(title, headings, left=("", "the engine"))
    for limit in limits:
        most = f"{limit.most:,}" if limit.most else ""
        verdict = "too few" if limit.binds else "enough"
        table.add_row(limit.what, f"{limit.count:,}", verdict, most, limit.answer)
    return table


def _tables_of_loads(plan: CapacityPlan) -> Iterator[tuple[str, Sequence[Load]]]:
    for bound in BOUNDS:
        modelled = bound != "datasheet" and not plan.own_loads
        title = MODELLED if modelled else _TITLES[bound]
        yield title, [load for load in plan.loads if load.bound == bound]
    if plan.own_loads:
        yield MODELLED, plan.own_loads


def _loads_table(plan: CapacityPlan, title: str, loads: Sequence[Load]) -> Table:
    options = plan.options
    k = options.num_speculative_tokens
    headings = ["\nC", "\nfits", "experts\nread", "plain\nms", "tok/s\n/GPU"]
    if plan.memory.draft:
        headings += [f"k = {k}\ndraft ms", "verify\nms", "verify\n/ plain", "draft\nshare"]
        headings += ["break-\neven", "accept\nlength", "speed-\nup", "tok/s\n/GPU"]
        headings += ["best\nk", "speed-\nup", "tok/s\n/GPU"]
    table = text_table(title, headings)
    most = plan.memory.sequences(options.isl + options.osl, options.kv_cache_dtype)
    for load in loads:
        fits = "yes" if load.concurrency <= most else "NO"
        table.add_row(f"{load.concurrency}", fits, *_load_cells(load, k))
    return table


def _load_cells(load: Load, k: int) -> tuple[str, ...]:
    plain = (
        f"{load.distinct_experts:.0f}",
        f"{load.plain_s * 1e3:.2f}",
        f"{load.plain_tokens_per_s:.0f}",
    )
    if not load.rounds:
        return plain
    one, best = load.rounds[k], load.best
    return (
        *plain,
        f"{one.draft_s * 1e3:.2f}",
        f"{one.verify_s * 1e3:.2f}",
        f"{load.verify_to_plain(one):.2f}",
        f"{one.draft_share:.0%}",
        f"{load.break_even(one):.2f}",
        f"{one.accept_length:.2f}",
        f"{load.speedup(one):.2f}x",
        f"{load.tokens_per_s(one):.0f}",
        f"{best.num_speculative_tokens}",
        f"{load.speedup(best):.2f}x",
        f"{load.tokens_per_s(best):.0f}",
    )


def _notes(plan: CapacityPlan) -> list[str]:
    options = plan.options
    lengths = ", ".join(f"{length:.2f}" for length in options.accept_lengths)
    notes = [
        f"Context {options.context:g} (isl + osl / 2), KV {options.kv_cache_dtype}; "
        f"accept lengths of k = 0, 1, …: {lengths}. Prefill is not counted.",
        *context_notes(plan),
        *data_parallel_notes(plan),
        *(host_note(plan.host, gpu) for gpu in plan.host.shapes),
    ]
    if options.parallel.devices > 8:
        notes.append("More than 8 GPUs: the network between nodes is not in these times.")
    return notes


def _published_table(compared: Sequence[Compared]) -> Table:
    title = "Published figures beside the two limits, ms of a step or round of all C sequences"
    headings = ("", "C", "k", "published", "ms", *BOUNDS, "ms / tuned")
    table = text_table(title, headings, left=("", "published"))
    sources = list(dict.fromkeys(row.setup.source for row in compared))
    seen = ""
    for row in compared:
        figure = row.figure
        name = (
            f"{row.setup.name} [{sources.index(row.setup.source) + 1}]"
            if row.setup.name != seen
            else ""
        )
        k = "plain" if figure.num_speculative_tokens is None else f"{figure.num_speculative_tokens}"
        limits = (f"{row.limit_ms[bound]:.2f}" for bound in BOUNDS)
        numbers = (f"{figure.step_ms:.2f}", *limits, f"{row.ratio('tuned'):.2f}")
        table.add_row(name.replace("[", r"\["), f"{figure.concurrency}", k, figure.said, *numbers)
        seen = row.setup.name
    return table


def _gib(nbytes: int) -> str:
    return f"{nbytes / GIB:.2f} GiB"


def _whole(nbytes: int) -> str:
    return f"{nbytes:,} B in all"
