"""Terminal tables of a training step compiled at its real size, with violations."""

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from convert.hub.source import Source
from eagle3_tools.aot.workers import Failure
from eagle3_tools.plan.compile.full_size_table import GIB, traffic
from eagle3_tools.plan.compile.training_report import Job, StepReport
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.training.table import PROGRAMS

_HEADINGS = (
    *("arguments\nGiB", "of\nplan", "in\nplace", "tempora-\nries GiB", "of\nplan"),
    *("launches", "collec-\ntives", "\ns", "host\nGiB"),
)


def print_steps(
    console: Console, jobs: Sequence[Job], results: Sequence[StepReport | Failure]
) -> bool:
    """Print a row for each program and pair, then collectives and failures; return whether there
    are no failures."""
    reports = [result for result in results if isinstance(result, StepReport)]
    console.print(_programs(jobs, results))
    console.print(_pairs(reports))
    for report in reports:
        _print(console, f"\n{name_of(report.job)}:", *traffic(report.collectives))
    failures = [*_failed(jobs, results), *_too_large(reports)]
    _print(console, *failures)
    return not failures


def name_of(job: Job) -> str:
    """Return a program's name: the target's pass, kimi-k2.5; the update, kimi-k2.5-eagle3."""
    pair = job.options.pair
    model = pair.model if job.part == "features" else pair.draft
    return f"{PROGRAMS[job.part]}, {_short(model)}"


def held_bytes(features: StepReport, update: StepReport) -> int:
    """Return the bytes on a device while the larger of a pair's programs runs: the arguments of
    both, shared ones once, and its temporaries."""
    arguments = features.argument_bytes + update.argument_bytes - update.shared_bytes
    return arguments + max(features.temporary_bytes, update.temporary_bytes)


def usable_bytes(job: Job) -> int:
    """Return the bytes that serving may use."""
    options = job.options.pair
    return int(GPUS[options.gpu].memory * options.gpu_memory_utilization)


def _programs(jobs: Sequence[Job], results: Sequence[StepReport | Failure]) -> Table:
    first = jobs[0].options
    shown = Table(
        title=f"A training step on {first.pair.parallel.devices} {first.pair.gpu}, {first.rows} x "
        f"{first.pair.max_model_len:,} tokens, {first.unroll} steps of the chain: each device",
        title_justify="left",
    )
    shown.add_column("program", no_wrap=True)
    for heading in _HEADINGS:
        shown.add_column(heading, justify="right")
    for job, result in zip(jobs, results, strict=True):
        cells = ("FAILED",) if isinstance(result, Failure) else _cells(result)
        shown.add_row(name_of(job), *cells)
    return shown


def _cells(report: StepReport) -> tuple[str, ...]:
    given, taken = report.argument_bytes, report.temporary_bytes
    donated = report.donated_bytes
    return (
        f"{given / GIB:.2f}",
        f"{given / report.planned_arguments:.1%}",
        f"{report.alias_bytes / donated:.0%}" if donated else "",
        f"{taken / GIB:.2f}",
        f"{taken / report.planned_temporaries:.0%}",
        f"{report.launches}",
        f"{sum(report.collectives.values())}",
        f"{report.seconds:.0f}",
        f"{report.peak_bytes / GIB:.1f}",
    )


def _pairs(reports: Sequence[StepReport]) -> Table:
    shown = Table(title="What a device holds while the larger of both runs", title_justify="left")
    for heading in ("target", "draft", "GiB", "of"):
        shown.add_column(heading)
    for features, update in _paired(reports):
        shown.add_row(
            _short(features.job.options.pair.model),
            _short(update.job.options.pair.draft),
            f"{held_bytes(features, update) / GIB:.1f}",
            f"{usable_bytes(update.job) / GIB:.1f}",
        )
    return shown


def _paired(reports: Sequence[StepReport]) -> Iterator[tuple[StepReport, StepReport]]:
    """Yield every target with every draft: targets give the update the same shapes."""
    for features in reports:
        for update in reports:
            if (features.job.part, update.job.part) == ("features", "update"):
                yield features, update


def _too_large(reports: Sequence[StepReport]) -> Iterator[str]:
    for features, update in _paired(reports):
        if (held := held_bytes(features, update)) > usable_bytes(update.job):
            names = f"{name_of(features.job)} and {name_of(update.job)}"
            yield f"FAILED {names}: {held:,} B, more than {usable_bytes(update.job):,}"


def _failed(jobs: Sequence[Job], results: Sequence[StepReport | Failure]) -> Iterator[str]:
    for job, result in zip(jobs, results, strict=True):
        reasons = (
            [f"{result.reason} {result.said}"] if isinstance(result, Failure) else result.failures
        )
        yield from (f"FAILED {name_of(job)}: {reason}" for reason in reasons)


def _short(source: Source | None) -> str:
    assert source is not None, "a pair has both"
    return source.last_name.removesuffix(".json").removesuffix(".config")


def _print(console: Console, *lines: str) -> None:
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
