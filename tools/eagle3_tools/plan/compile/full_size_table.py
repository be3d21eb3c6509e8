"""Terminal table of rounds compiled at their real size, with violations."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from rich.console import Console
from rich.table import Table

from eagle3_tools.aot.collectives import Collective
from eagle3_tools.aot.workers import Failure, run_each
from eagle3_tools.plan.compile.full_size import FullSizeReport, report_full_size
from eagle3_tools.plan.options import PlanOptions

GIB, MIB = 1 << 30, 1 << 20
LIMIT_S = 1200.0
"""Time limit of one program, on a machine that is also busy otherwise."""
MOST_MORE_LAUNCHES = 3
"""Most additional launches a layer, with collectives, if devices split contexts."""
Compiled = FullSizeReport | Failure
_NAMES = ("target\ndraft", "GPUs", "k")
_HEADINGS = (
    *("arguments\nGiB", "of\nplan", "KV\ntokens", "in\nplace", "tempora-\nries MiB"),
    *("launches\na layer", "a\nround", "collec-\ntives", "\ns", "CPU\ns", "host\nGiB"),
)


def compile_full_size(every: Sequence[PlanOptions], limit_s: float = LIMIT_S) -> Iterator[Compiled]:
    """Compile one round after the other, each in a separate process."""
    for options in every:
        yield from run_each(report_full_size, [options], processes=1, limit_s=limit_s)


def print_full_size(
    console: Console, every: Sequence[PlanOptions], results: Sequence[Compiled]
) -> bool:
    """Print a row for each round, collectives and failures; return True without failures."""
    console.print(_table(every, results))
    failures = [*failed(map(name_of, every), results)]
    more = dict(more_launches(results))
    failures += [f"FAILED {name}" for name, count in more.items() if count > MOST_MORE_LAUNCHES]
    divided = [f"{name}: {count:+.2f} launches a layer" for name, count in more.items()]
    for line in (*_collectives(results), *divided, *failures):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not failures


def _table(every: Sequence[PlanOptions], results: Sequence[Compiled]) -> Table:
    shown = Table(
        title="Rounds at full size: what one device holds, launches and receives; "
        "what compiling them took",
        title_justify="left",
    )
    for heading in _NAMES:
        shown.add_column(heading, no_wrap=True)
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right")
    for options, result in zip(every, results, strict=True):
        cells = ("FAILED",) if isinstance(result, Failure) else _cells(result)
        target, draft, gpus, k = _names(options)
        shown.add_row(f"{target}\n{draft}", gpus, k, *cells)
    return shown


def _names(options: PlanOptions) -> tuple[str, ...]:
    """Return the parts of a name: kimi-k2.5-mxfp4, kimi-k2.5-eagle3-fp8, MI355X TP4, 3."""
    models = (source.last_name if source else "none" for source in (options.model, options.draft))
    experts = " EP" if options.parallel.expert_parallel else ""
    contexts = f" DCP{parts}" if (parts := options.parallel.context_parts) > 1 else ""
    gpus = f"{options.gpu} TP{options.parallel.devices}{experts}{contexts}"
    target, draft = (name.removesuffix(".json").removesuffix(".config") for name in models)
    return target, draft, gpus, f"{options.num_speculative_tokens}"


def name_of(options: PlanOptions) -> str:
    """Return a name: kimi-k2.5-mxfp4 + kimi-k2.5-eagle3-fp8, MI355X TP4, k = 3, batch 64."""
    target, draft, gpus, k = _names(options)
    return f"{target} + {draft}, {gpus}, k = {k}, batch {options.max_num_seqs}"


def _cells(report: FullSizeReport) -> tuple[str, ...]:
    return (
        f"{report.argument_bytes / GIB:.1f}",
        f"{report.argument_bytes / report.planned_bytes:.2%}",
        f"{report.kv_tokens:,}",
        f"{report.alias_bytes / report.state_bytes:.0%}",
        f"{report.temporary_bytes / MIB:.0f}",
        f"{report.per_layer:g}",
        f"{report.program}",
        f"{sum(report.collectives.values())}",
        f"{report.seconds:.0f}",
        f"{report.cpu_seconds:.0f}",
        f"{report.peak_bytes / GIB:.1f}",
    )


def _collectives(results: Iterable[Compiled]) -> Iterator[str]:
    """Yield the collectives of each program."""
    for report in results:
        if isinstance(report, Failure):
            continue
        yield f"\n{name_of(report.options)}:"
        yield from traffic(report.collectives)


def traffic(counted: Mapping[Collective, int]) -> Iterator[str]:
    """Yield count, kind and size of collectives, those with most bytes first."""
    for one, count in sorted(counted.items(), key=lambda item: -item[0].nbytes * item[1]):
        loop = "" if one.times == 1 else f", each {one.times or 'as the data say'} times"
        yield f"  {count} x {one.kind} {one.dtype}{list(one.shape)}, {one.nbytes:,} B{loop}"


def more_launches(results: Iterable[Compiled]) -> Iterator[tuple[str, float]]:
    """Yield the launches a layer, with collectives, that splitting contexts adds to a round, if the
    round without it was compiled too. Each splitting layer exchanges partial attention once, so
    all-to-alls count the layers. A collective of several arrays is one launch."""
    known = {one.options: one for one in results if isinstance(one, FullSizeReport)}
    for options, divided in known.items():
        undivided = replace(options, parallel=replace(options.parallel, context_parts=1))
        whole = known.get(undivided)
        layers = sum(n for one, n in divided.collectives.items() if one.kind == "all-to-all")
        if options != undivided and whole and layers:
            telling = divided.telling - whole.telling
            yield name_of(options), divided.per_layer - whole.per_layer + telling / layers


class Judged(Protocol):
    """Report of a compiled program."""

    @property
    def failures(self) -> Sequence[str]:
        """Expectations that the program does not meet."""
        ...


def failed(names: Iterable[str], results: Iterable[Judged | Failure]) -> Iterator[str]:
    """Yield a line for each program that does not compile, and for each violation of the others."""
    for name, result in zip(names, results, strict=True):
        reasons = (
            [f"{result.reason} {result.said}"] if isinstance(result, Failure) else result.failures
        )
        yield from (f"FAILED {name}: {reason}" for reason in reasons)
