"""python -m eagle3_tools.plan.compile.full_size_pairs FOLDER: compile published pairs at full size.

FOLDER has their config.json files (tests/oracles/published). Needs the extra `rocm`, gcc and
binutils, no GPU. Exit status 1 if a program does not compile or does not meet its expectations.
"""

import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from eagle3_tools.aot.launches import launches
from eagle3_tools.checks.check import Check, print_lines
from eagle3_tools.checks.pool import Failure
from eagle3_tools.plan.compile.full_size import (
    full_size_problems,
    full_size_program,
    launch_problems,
    launches_per_layer,
)
from eagle3_tools.plan.compile.report import (
    COLUMNS,
    ProgramReport,
    pair_options,
    refusals,
    report_of,
    run_command,
    traffic,
)
from eagle3_tools.plan.options import PlanOptions
from eagle3_tools.plan.planner import make_plan, read_pair

MOST_MORE_LAUNCHES = 3
"""Most additional launches a layer, with collectives, if devices split contexts."""
PAIRS = (
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-fp8", "--arch=gfx950 -tp=4", (3, 6)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-fp8", "--arch=gfx950 -tp=8", (3, 6)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=4", (3, 6)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8", (3,)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8 -dcp=8", (3,)),
    ("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla", "--arch=gfx950 -tp=8 --max-num-seqs=16", (3,)),
    (
        *("kimi-k2.5-mxfp4", "kimi-k2.5-eagle3-mla"),
        *("--arch=gfx950 -tp=8 -dcp=8 --max-num-seqs=16", (3,)),
    ),
    ("kimi-k2.5", "kimi-k2.5-eagle3", "--arch=gfx942 -tp=8", (3, 6)),
    ("kimi-k2.5-w4a8", "eagle3-kimik2.5-w4a8", "--arch=gfx942 -tp=8", (3, 6)),
    ("kimi-k2.5-w4a8", "kimi-k2.5-eagle3-mla", "--arch=gfx942 -tp=8", (3,)),
    ("kimi-k2.5-w4a8", "kimi-k2.5-eagle3-mla", "--arch=gfx942 -tp=8 -dcp=8", (3,)),
    ("minimax-m2.5", "minimax-m2.5-eagle3", "--arch=gfx950 -tp=4 --enable-expert-parallel", (3, 6)),
)
"""Target, draft, GPUs with parallelism, and drafts a round."""


def main(argv: Sequence[str] | None = None) -> int:
    return run_command("full_size_pairs", __doc__, ROUNDS, argv, print_rounds)


def full_size_options(folder: Path) -> Iterator[PlanOptions]:
    """Yield options as of eagle3-plan --compile, batch 64 unless a pair names another."""
    for target, draft, layout, counts in PAIRS:
        for k in counts:
            sizes = "--max-model-len=10240", f"--num-speculative-tokens={k}"
            yield pair_options(folder, target, draft, *layout.split(), *sizes)


def report_full_size(options: PlanOptions) -> ProgramReport:
    """Compile the pair's lean round and report on it. Raises the plan's errors, and RuntimeError if
    the compiler is not installed."""
    begin, pair = time.monotonic(), read_pair(options)
    memory, dtype = make_plan(options, pair).memory, options.kv_cache_dtype
    state = memory.state + memory.pages(dtype) * memory.page_bytes(dtype)
    planned = memory.pair_weights + state
    with refusals() as refused:
        compiled = full_size_program(options, pair, memory).compile()
    per_layer = launches_per_layer(launches(compiled.program.hlo), pair)
    problems = [
        *refused,
        *launch_problems(per_layer, options.parallel.context_parts),
        *full_size_problems(options, pair, compiled, planned, state),
    ]
    return report_of(
        options,
        compiled.program,
        problems,
        begin=begin,
        donated_bytes=compiled.state_bytes,
        planned={"arguments": planned},
        per_layer=per_layer,
        figures={"KV tokens": memory.tokens(dtype)},
    )


def _names(options: PlanOptions) -> tuple[str, ...]:
    """Return the parts of a name: kimi-k2.5-mxfp4, kimi-k2.5-eagle3-fp8, MI355X TP4."""
    models = (source.last_name if source else "none" for source in (options.model, options.draft))
    experts = " EP" if options.parallel.expert_parallel else ""
    contexts = f" DCP{parts}" if (parts := options.parallel.context_parts) > 1 else ""
    gpus = f"{options.gpu} TP{options.parallel.devices}{experts}{contexts}"
    return *(name.removesuffix(".json").removesuffix(".config") for name in models), gpus


def name_of(options: PlanOptions) -> str:
    """Return a name: kimi-k2.5-mxfp4 + kimi-k2.5-eagle3-fp8, MI355X TP4, k = 3, batch 64."""
    target, draft, gpus = _names(options)
    k, batch = options.num_speculative_tokens, options.max_num_seqs
    return f"{target} + {draft}, {gpus}, k = {k}, batch {batch}"


ROUNDS = Check[PlanOptions, ProgramReport](
    name="Rounds at full size: what one device holds, launches and receives; what compiling them "
    "took",
    build=lambda flags: full_size_options(flags.folder),
    run=report_full_size,
    label=name_of,
    heads={
        "target\ndraft": lambda options: "\n".join(_names(options)[:2]),
        "GPUs": lambda options: _names(options)[2],
        "k": lambda options: f"{options.num_speculative_tokens}",
    },
    columns={name: cell for name, cell in COLUMNS.items() if name != "of\nthe plan"}
    | {"KV\ntokens": lambda found: f"{found.figures['KV tokens']:,}"},
)


def print_rounds(
    console: Console, jobs: Sequence[PlanOptions], results: Sequence[ProgramReport | Failure]
) -> bool:
    """Print a row for each round, collectives and failures; return whether there are none."""
    console.print(ROUNDS.table(jobs, results))
    reports = [result for result in results if isinstance(result, ProgramReport)]
    for report in reports:
        print_lines(console, [f"\n{name_of(report.job)}:", *traffic(report.collectives)])
    more = dict(more_launches(reports))
    failures = [
        *ROUNDS.failures(jobs, results),
        *(f"FAILED {name}" for name, added in more.items() if added > MOST_MORE_LAUNCHES),
    ]
    divided = (f"{name}: {added:+.2f} launches a layer" for name, added in more.items())
    print_lines(console, [*divided, *failures])
    return not failures


def more_launches(reports: Iterable[ProgramReport]) -> Iterator[tuple[str, float]]:
    """Yield the launches a layer, with collectives, that splitting contexts adds to a round, if the
    round without it was compiled too. Each splitting layer exchanges partial attention once, so
    all-to-alls count the layers. A collective of several arrays is one launch."""
    known = {one.job: one for one in reports}
    for options, divided in known.items():
        undivided = replace(options, parallel=replace(options.parallel, context_parts=1))
        whole = known.get(undivided)
        layers = sum(n for one, n in divided.collectives.items() if one.kind == "all-to-all")
        if options != undivided and whole and layers:
            telling = divided.telling - whole.telling
            added = (divided.per_layer or 0) - (whole.per_layer or 0)
            yield name_of(options), added + telling / layers


if __name__ == "__main__":
    sys.exit(main())
