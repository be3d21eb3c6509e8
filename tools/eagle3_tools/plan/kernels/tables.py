"""`eagle3-plan --kernels`: tables of the model of the compiled code."""

from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from rich.console import Console
from rich.table import Table

from eagle3_tools.checks.check import print_lines
from eagle3_tools.kernel_model.facts import KernelFacts
from eagle3_tools.kernel_model.gpus import ASSUMPTIONS, BY_ARCH, MI355X, ModelGpu
from eagle3_tools.kernel_model.published import families, family_of
from eagle3_tools.kernel_model.record import FOLDER, CaseFacts, recorded
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.kernels.round_launches import RoundOf, Scheme
from eagle3_tools.plan.kernels.round_time import RoundTime, round_time
from serve.text_table import text_table

BATCHES, DEVICES = (16, 64), (4, 8)
_KERNEL_HEADINGS = (
    *("case", "kernel", "programs", "steps", "in flight\nKiB", "needed", "loads\nB a lane"),
    *("regis-\nters", "LDS\nKiB", "us", "share", "by\nfamily", "limit"),
)


def print_kernels(console: Console, only: str) -> None:
    """Print recorded kernels of cases with `only` in their name, rounds, peers and assumptions."""
    console.print("Model, not measured: predicted from the facts of the compiled code.")
    for arch, gpu in BY_ARCH.items():
        if cases := {n: case for n, case in recorded(arch).items() if only in n}:
            console.print(_kernels(gpu, cases))
    rounds = all_rounds()
    for gpu in dict.fromkeys(one.gpu.name for one in rounds):
        console.print(_shares([one for one in rounds if one.gpu.name == gpu]))
    console.print(_steps(rounds))
    console.print(_families())
    print_lines(console, (f"{name}: {source}" for name, source in ASSUMPTIONS))


def _kernels(gpu: ModelGpu, cases: Mapping[str, CaseFacts]) -> Table:
    table = text_table(f"Kernels on {gpu.name}", _KERNEL_HEADINGS, left=("case", "kernel", "limit"))
    table.box = None
    for name, case in cases.items():
        scale = _scale(name, gpu)
        for facts, found in zip(case.kernels, case.predictions(gpu), strict=True):
            table.add_row(
                name,
                facts.name,
                f"{found.programs:.0f}",
                f"{found.steps:.0f}",
                f"{found.in_flight / 1024:.0f}",
                f"{gpu.needed / 1024:.0f}",
                widths_of(facts),
                f"{facts.registers}",
                f"{facts.lds / 1024:.0f}",
                f"{found.seconds * 1e6:.1f}",
                f"{found.share:.2f}",
                f"{found.share * scale:.2f}" if scale else "",
                found.limit,
            )
            name = ""
        if len(case.kernels) > 1:
            share = case.share(gpu)
            by_family = f"{share * scale:.2f}" if scale else ""
            both = f"{case.seconds(gpu) * 1e6:.1f}", f"{share:.2f}", by_family
            table.add_row("", "all", *("",) * 7, *both, "")
    return table


def _scale(case: str, gpu: ModelGpu) -> float | None:
    """Return predicted over published time of the kernels of peers that are like this case."""
    family = family_of(case) if gpu is MI355X else None
    return families()[family].median if family else None


def widths_of(facts: KernelFacts) -> str:
    """Return the bytes a lane of the main loop's loads, the widest first."""
    return " ".join(map(str, sorted({load.width for load in facts.main.loads}, reverse=True)))


def all_rounds(folder: Path = FOLDER) -> list[RoundTime]:
    return [
        round_time(RoundOf(scheme, batch, devices), name, recorded(gpu.arch, folder))
        for name, gpu in GPUS.items()
        if name == BY_ARCH[gpu.arch].name and recorded(gpu.arch, folder)
        for scheme in get_args(Scheme)
        for batch in BATCHES
        for devices in DEVICES
    ]


def _shares(rounds: list[RoundTime]) -> Table:
    """Build a table of one GPU's fraction of the floor by part, with kernels weighted by time."""
    parts = list(dict.fromkeys(part for one in rounds for part in one.parts))
    title = "A round of k = 3 at 8,704 slots: us of its kernels alone, and their share of the floor"
    names = [round_name(one) for one in rounds]
    table = text_table(title, ("", *names), left=("",))
    for part in parts:
        cells = (one.parts[part] for one in rounds)
        table.add_row(part, *(f"{x.seconds * 1e6:.0f}\n{x.share:.2f}" for x in cells))
    whole = (one.kernels for one in rounds)
    table.add_section()
    table.add_row("all", *(f"{x.seconds * 1e6:.0f}\n{x.share:.2f}" for x in whole))
    return table


def _steps(rounds: list[RoundTime]) -> Table:
    title = "The whole round, ms: kernels, the gaps between them, sums over devices"
    headings = ("", "kernels", "of kernels", "sums", "no command buffers", "command buffers")
    table = text_table(title, headings, left=("",))
    for one in rounds:
        whole = one.kernels
        waits = (one.sums, *(one.seconds(command_buffers=replayed) for replayed in (False, True)))
        table.add_row(
            round_name(one).replace("\n", " "),
            f"{whole.kernels}",
            f"{1e3 * whole.seconds:.2f}",
            *(f"{1e3 * each:.2f}" for each in waits),
        )
    return table


def _families() -> Table:
    title = "MI355X: predicted over published times of peers' compiled kernels, by family"
    table = text_table(
        title, ("family", "times", "median", "spread", "published in"), left=("family",)
    )
    for name, found in families().items():
        agreement = f"{found.median:.2f}", f"{found.spread:.2f}"
        sources = f"{found.sources[0]}, {len(found.sources)} tables"
        table.add_row(name, f"{found.count}", *agreement, sources)
    return table


def round_name(one: RoundTime) -> str:
    of = one.of
    return f"{one.gpu.name}\n{of.scheme}\nB {of.batch}\nTP {of.devices}"
