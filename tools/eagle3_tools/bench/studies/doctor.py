"""First checks of a machine: versions, devices, every kernel, all-reduces, whole rounds.

Each check runs in its own process, so that a crash or hang becomes a finding.
"""

import argparse
import os
from dataclasses import asdict
from functools import partial
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from convert.command_line.options import COUNT, POSITIVE, add_options
from convert.command_line.stopping import status_of
from convert.hub.checkpoint import find_config
from convert.hub.source import add_hub_flags, source_of
from eagle3_jax.engine.config import OPERATIONS, EngineConfig
from eagle3_tools.bench.common.flags import add_shared
from eagle3_tools.bench.doctor.findings import Finding, Work, each, work
from eagle3_tools.checks.record import write_json
from serve.demo import demo_draft_dir, demo_target_dir
from serve.options.engine import EngineFlags, under_flags_names
from serve.options.speculation import TreeFlags


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(check=_check)
    both = "config.json, or a directory or hub id with one"
    parser.add_argument("--model", metavar="PATH", help=f"what will be served: {both}")
    parser.add_argument(
        "--draft",
        metavar="PATH",
        help="draft of that model: config.json, or a directory or hub id with one",
    )
    add_hub_flags(parser, draft=True)
    parser.add_argument(
        "--demo", action="store_true", help="examine the small embedded pair in place of a model"
    )
    parser.add_argument(
        *("--tensor-parallel-size", "-tp"),
        type=COUNT,
        metavar="N",
        help="whose shapes kernels have; default: the largest that devices and model allow",
    )
    parser.add_argument(
        *("--decode-context-parallel-size", "-dcp"),
        type=COUNT,
        default=1,
        metavar="N",
        help="devices that divide a context, in kernels' shapes and rounds; default: 1",
    )
    _add_engine_flags(parser)
    add_options(parser, EngineFlags, "xla_kernels")
    limit = {"type": POSITIVE, "default": 300.0, "metavar": "S"}
    parser.add_argument("--limit", **limit, help="seconds that each check may take")
    add_shared(
        parser, "--json", help="write all findings, for a bug report; without names and secrets"
    )


def _add_engine_flags(parser: argparse.ArgumentParser) -> None:
    """Add the server flags that determine kernels' shapes and dtypes."""
    group = parser.add_argument_group("as it will be served")
    group.add_argument(
        "--num-speculative-tokens", type=int, metavar="K", default=3, help="drafts; default: 3"
    )
    add_options(group, TreeFlags)
    add_options(group, EngineFlags, "page_size", "kv_cache_dtype")


def _engine(flags: argparse.Namespace) -> EngineConfig:
    """Return the server's engine configuration; raise ValueError, naming a flag, for a bad one."""
    dtype = flags.kv_cache_dtype.removesuffix("_e4m3")
    given: dict[str, Any] = {
        "eagle_topk": flags.speculative_eagle_topk,
        "num_draft_tokens": flags.speculative_num_draft_tokens,
        "page_size": flags.page_size,
        "kv_cache_scale": 1.0 if dtype == "fp8" else None,
    }
    try:
        return EngineConfig(
            num_speculative_tokens=flags.num_speculative_tokens,
            decode_context_parallel_size=flags.decode_context_parallel_size,
            kv_cache_dtype=dtype,
            **{name: value for name, value in given.items() if value is not None},
        )
    except ValueError as error:
        raise ValueError(under_flags_names(str(error))) from error


def _check(flags: argparse.Namespace) -> None:
    if flags.demo and (flags.model or flags.draft):
        raise ValueError("--demo brings its own pair; leave --model and --draft out")
    if flags.draft and not flags.model:
        raise ValueError("--draft needs the target it was made for: --model")
    parts = flags.decode_context_parallel_size
    if flags.tensor_parallel_size and flags.tensor_parallel_size % parts:
        raise ValueError(
            f"--decode-context-parallel-size must divide --tensor-parallel-size; got {parts}"
        )
    _engine(flags)
    if unknown := [name for name in flags.xla_kernels if name not in OPERATIONS]:
        raise ValueError(
            f"--xla-kernels must be among {', '.join(OPERATIONS)}; got {', '.join(unknown)}"
        )


def run(flags: argparse.Namespace, console: Console, work: Work = work) -> int:
    """Run all checks; return 0, 1 if a finding is bad, 130 after Ctrl-C.

    The report always has the findings so far. Raises ValueError for unusable JAX or model files.
    """
    # The processes of several checks share the devices.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    from eagle3_tools.bench.doctor.examination import Examined, examine
    from eagle3_tools.bench.doctor.served import Served

    model, draft = flags.model, flags.draft
    if flags.demo:
        model, draft = demo_target_dir(), demo_draft_dir()
    else:
        model = model and find_config(source_of(flags, model, flags.revision))
        draft = draft and find_config(source_of(flags, draft, flags.draft_revision))
    served = Served(model, draft, flags.tensor_parallel_size, _engine(flags))
    examined, runs = Examined(), partial(each, limit_s=flags.limit, work=work)
    try:
        with _progress() as progress:
            task = progress.add_task("looking at the machine")
            for finding in examine(examined, served, flags.xla_kernels, runs):
                print_finding(console, finding)
                progress.update(task, description=f"after {finding.check} {finding.subject}")
    except KeyboardInterrupt as stopped:
        console.print("stopped: what was found so far counts, the rest was not looked at")
        return status_of(stopped)
    finally:
        if flags.json:
            write_json(flags.json, {"benchmark": "doctor", **asdict(examined)})
            console.print(f"{flags.json} has it all, for a bug report", soft_wrap=True)
    print_result(console, examined.findings)
    return 0 if examined.holds else 1


def print_finding(console: Console, finding: Finding) -> None:
    """Print one line, however long."""
    style = "bold red" if finding.bad else ""
    console.print(f"{finding}", style=style, markup=False, highlight=False, soft_wrap=True)


def print_result(console: Console, findings: list[Finding]) -> None:
    """Print the number of findings of each kind, and the kernels to switch off."""
    counts = {verdict: 0 for verdict in dict.fromkeys(f.verdict for f in findings)}
    for finding in findings:
        counts[finding.verdict] += 1
    console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    kernels = [f.subject.split()[0] for f in findings if f.bad and f.check == "kernel"]
    if kernels:
        console.print(f"until then: --xla-kernels {','.join(dict.fromkeys(kernels))}")


def _progress() -> Progress:
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True)
