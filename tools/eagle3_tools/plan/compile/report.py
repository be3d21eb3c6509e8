"""Reports of programs compiled at full size, and the expectations that all of them share.

Nothing is allocated: weights are shapes, and the compilers need no GPU. A job's process runs no
other job, so that peak memory is its own.
"""

import logging
import os
import time
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from convert.command_line.parser import OneLineParser
from eagle3_tools.aot import Program
from eagle3_tools.aot.collectives import Collective, collectives
from eagle3_tools.aot.expectations import MIB, kernel_problems
from eagle3_tools.aot.launches import Launch, count, launches
from eagle3_tools.bench.common.conditions import memory_mib
from eagle3_tools.checks.check import Check, console_of
from eagle3_tools.checks.pool import Failure
from eagle3_tools.plan.options import PlanOptions, build_parser, read_options

GIB = 1 << 30
LIMIT_S = 1200.0
"""Time limit of one program, on a machine that is also busy otherwise."""
MOST_TEMPORARY_BYTES = 2 << 30
MOST_BESIDE_PLAN = 0.01
"""Largest relative difference between arguments and plan."""
MOST_TOLD_BYTES = MIB
"""Largest collective besides those that a program needs: maxima, counts, (score, id) pairs."""
SUMS_A_LAYER = 2


@dataclass(frozen=True)
class ProgramReport:
    """Report of a compiled program; bytes are those of each device.

    Attributes:
        job: The program.
        argument_bytes: Of all arguments.
        temporary_bytes: Of temporaries.
        donated_bytes: Of arguments that the program may overwrite.
        alias_bytes: Of those that it does overwrite.
        launches: Of the program, without collectives.
        collectives: (kind, dtype, shape) and count in the program.
        telling: Launches of collectives, of which one may cover several arrays.
        failures: Violated expectations.
        planned: What the plan says: bytes of `arguments`, of `temporaries`.
        per_layer: Mean launches of a layer without collectives.
        figures: Figures that only programs of this kind have.
        layer: Launches of one layer in order, if they are to be listed.
        seconds: Elapsed.
        cpu_seconds: Of all threads.
        peak_bytes: Of host memory.
    """

    job: Any
    argument_bytes: int
    temporary_bytes: int
    donated_bytes: int
    alias_bytes: int
    launches: int
    collectives: Counter[Collective]
    telling: int
    failures: tuple[str, ...]
    planned: Mapping[str, int] = field(default_factory=dict)
    per_layer: float | None = None
    figures: Mapping[str, int] = field(default_factory=dict)
    layer: tuple[Launch, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_bytes: int = 0


COLUMNS: Mapping[str, Callable[[ProgramReport], str]] = {
    "arguments\nGiB": lambda found: f"{found.argument_bytes / GIB:.1f}",
    "of\nplan": lambda found: f"{found.argument_bytes / found.planned['arguments']:.2%}",
    "in\nplace": lambda found: (
        f"{found.alias_bytes / found.donated_bytes:.0%}" if found.donated_bytes else ""
    ),
    "tempora-\nries MiB": lambda found: f"{found.temporary_bytes / MIB:.0f}",
    "of\nthe plan": lambda found: f"{found.temporary_bytes / found.planned['temporaries']:.0%}",
    "launches\na layer": lambda found: "" if found.per_layer is None else f"{found.per_layer:g}",
    "launches\nin all": lambda found: f"{found.launches}",
    "collec-\ntives": lambda found: f"{found.collectives.total()}",
    "\ns": lambda found: f"{found.seconds:.0f}",
    "CPU\ns": lambda found: f"{found.cpu_seconds:.0f}",
    "host\nGiB": lambda found: f"{found.peak_bytes / GIB:.1f}",
}
"""Heading -> cell of a report."""


def columns(*names: str) -> dict[str, Callable[[ProgramReport], str]]:
    return {name: COLUMNS[name] for name in names}


def pair_options(folder: Path, target: str, draft: str, *flags: str) -> PlanOptions:
    """Return options of eagle3-plan for a published pair: pages of 64 tokens, no images."""
    models = [f"--model={folder / target}.config.json", f"--draft={folder / draft}.config.json"]
    sizes = ["--language-model-only", "--block-size=64"]
    return read_options(build_parser().parse_args([*models, *sizes, *flags]))


def report_of(
    job: Any,
    program: Program,
    problems: Iterable[str],
    *,
    begin: float,
    donated_bytes: int = 0,
    **fields: Any,
) -> ProgramReport:
    """Report on a program whose compilation began at `begin` of `time.monotonic()`."""
    found = launches(program.hlo)
    return ProgramReport(
        job,
        program.argument_bytes,
        program.temporary_bytes,
        donated_bytes,
        program.alias_bytes,
        count(found),
        Counter(collectives(program.hlo)),
        sum(one.kind == "collective" for one in found),
        tuple(dict.fromkeys(problems)),
        seconds=round(time.monotonic() - begin, 1),
        cpu_seconds=round(time.process_time(), 1),
        peak_bytes=int(memory_mib(os.getpid(), "VmHWM") * MIB),
        **fields,
    )


def shared_problems(
    program: Program,
    *,
    donated_bytes: int = 0,
    arguments: int | None = None,
    temporaries: int = MOST_TEMPORARY_BYTES,
) -> Iterator[str]:
    """Yield kernels that spill, donated arguments that are copied, temporaries of so many bytes or
    more, and arguments that differ from the planned ones."""
    for kernel in program.kernels:
        yield from kernel_problems(kernel, program.arch)
    if program.alias_bytes < donated_bytes:
        yield f"{program.alias_bytes:,} B of {donated_bytes:,} donated are written in place"
    if program.temporary_bytes >= temporaries:
        yield f"{program.temporary_bytes / MIB:.0f} MiB of temporaries"
    if arguments is not None:
        if abs(program.argument_bytes - arguments) > MOST_BESIDE_PLAN * arguments:
            yield f"{program.argument_bytes:,} B of arguments, {arguments:,} were planned"


def large_collectives(found: Sequence[Collective], known: set[Collective]) -> Iterator[str]:
    """Yield the large collectives that are not known to be needed."""
    for one in found:
        if one not in known and one.nbytes > MOST_TOLD_BYTES:
            yield f"{one.kind} of {one.dtype}{list(one.shape)}"


def sums_of(
    found: Sequence[Collective], hidden: int, most: int | None
) -> tuple[set[Any], list[str]]:
    """Return the sums over hidden states, and a violation if they are more than `most`."""
    sums = [one for one in found if one.kind == "all-reduce" and one.shape[-1:] == (hidden,)]
    too_many = most is not None and len(sums) > most
    return set(sums), [f"{len(sums)} sums of hidden states, {most} would do"] * too_many


def traffic(counted: Mapping[Collective, int]) -> Iterator[str]:
    """Yield count, kind and size of collectives, those with most bytes first."""
    for one, times in sorted(counted.items(), key=lambda item: -item[0].nbytes * item[1]):
        loop = "" if one.times == 1 else f", each {one.times or 'as the data say'} times"
        yield f"  {times} x {one.kind} {one.dtype}{list(one.shape)}, {one.nbytes:,} B{loop}"


@contextmanager
def refusals() -> Iterator[list[str]]:
    """Collect the dispatcher's warnings about kernels that cannot run, within the context."""
    said: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: said.append(record.getMessage())
    log = logging.getLogger("pallas_kernels.dispatch")
    log.addHandler(handler)
    try:
        yield said
    finally:
        log.removeHandler(handler)


Print = Callable[[Console, Sequence[Any], Sequence[ProgramReport | Failure]], bool]
"""Prints jobs and results; returns whether there are no failures."""


def run_command(
    name: str,
    description: str | None,
    check: Check[Any, ProgramReport],
    argv: Sequence[str] | None,
    show: Print | None = None,
) -> int:
    """Run the module `name` of this package, whose jobs come from a folder of config.json files.

    Ends the process with status 2 and one line for bad flags. Returns the exit status.
    """
    parser = OneLineParser(
        prog=f"python -P -m eagle3_tools.plan.compile.{name}", description=description
    )
    parser.add_argument("folder", type=_directory)
    parser.add_argument(
        "--limit", type=seconds, default=LIMIT_S, metavar="S", help="for one program"
    )
    flags = parser.parse_args(argv)
    os.environ["JAX_PLATFORMS"] = "cpu"
    jobs = list(check.build(flags))
    results = check.results(jobs, flags.limit)
    return 0 if (show or check.print)(console_of(), jobs, results) else 1


def _directory(text: str) -> Path:
    if not (path := Path(text)).is_dir():
        raise ArgumentTypeError(f"must be a directory; got {text!r:.300}")
    return path


def seconds(text: str) -> float:
    if not (number := float(text)) > 0:
        raise ArgumentTypeError(f"must be above 0; got {text}")
    return number


def whole(text: str) -> int:
    if (number := int(text)) < 1:
        raise ArgumentTypeError(f"must be at least 1; got {text}")
    return number
