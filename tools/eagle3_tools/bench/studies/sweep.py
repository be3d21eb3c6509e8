"""Measure throughput and latency of OpenAI servers over lengths and concurrency."""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from convert.command_line.options import COUNT, COUNT_OR_0, POSITIVE, add_options, option
from convert.command_line.stopping import status_of
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.common.flags import check_demo
from eagle3_tools.bench.load.lengths import SAMPLINGS, USUAL_RATIO, Endpoint, Sampling, Workload
from eagle3_tools.bench.load.server_process import serving
from eagle3_tools.bench.sweep.configurations import Configuration, SweepPlan
from eagle3_tools.bench.sweep.measure import find_subject, measure
from eagle3_tools.bench.sweep.progress import SweepProgress
from eagle3_tools.bench.sweep.rows import SPEED, SPOKEN, SYNTHETIC, rows_of
from eagle3_tools.checks.check import table_of

READY_TIMEOUT_S = 3600.0
LENGTHS, DEMO_LENGTHS = (1024, 1024), (256, 128)
"""ISL and OSL. The embedded pair has a context of 1024 tokens."""


def _lengths(text: str) -> tuple[int, int]:
    isl, _, osl = text.partition("/")
    if not (isl.isdigit() and osl.isdigit() and int(isl) and int(osl)):
        raise argparse.ArgumentTypeError(
            f"must be ISL/OSL in tokens, such as 1024/1024; got {text!r}"
        )
    return int(isl), int(osl)


@dataclass(frozen=True)
class ServerFlags:
    """The servers to start, or the one that runs."""

    model: str | None = option("MODEL", "start servers of this target", nargs="?")
    draft: str | None = option("--draft DRAFT", "draft of MODEL")
    demo: bool = option(
        "--demo", "use the small embedded model pair (the default without MODEL and --url)"
    )
    configurations: tuple[str, ...] = option(
        "--configurations NAME",
        "plain, kN (N drafts a round), goldenN (synthetic acceptance at InferenceX's length)",
        default=("plain", "k3"),
        nargs="+",
    )
    server_flags: tuple[str, ...] = option(
        "--server-flags FLAG",
        "flags of eagle3-serve for these servers; must be the last flag here",
        default=(),
        nargs=argparse.REMAINDER,
    )
    url: str | None = option("--url URL", "address of a running OpenAI server to measure instead")
    label: str = option("--label NAME", "name of that server in results", default="server")
    served_model_name: str | None = option(
        "--served-model-name NAME", "model's name at --url; default: the first that it lists"
    )
    tokenizer: str | None = option(
        "--tokenizer MODEL", "tokenizer directory or hub id, if the model has none"
    )
    endpoint: Endpoint = option(
        "--endpoint",
        "endpoint of the server",
        default="completions",
        choices=("completions", "chat"),
    )


@dataclass(frozen=True)
class LoadFlags:
    """The requests."""

    lengths: tuple[tuple[int, int], ...] | None = option(
        "--lengths ISL/OSL",
        "tokens of prompt and answer; default 1024/1024 (demo: 256/128)",
        _lengths,
        nargs="+",
    )
    concurrency: tuple[int, ...] = option(
        "--concurrency C", "requests at a time", COUNT, default=(4, 8, 16, 32, 64), nargs="+"
    )
    sampling: Sampling = option(
        "--sampling",
        "client whose rule draws lengths and prompts",
        default="inferencex",
        choices=SAMPLINGS,
    )
    range_ratio: float | None = option(
        "--range-ratio R",
        "spread of the random lengths, as that client defines it; default 0.8, 0, 0",
        float,
    )
    sharegpt: str | None = option(
        "--sharegpt FILE", "ShareGPT file whose prompts SGLang's `random` data set repeats"
    )
    chat_template: bool = option(
        "--chat-template",
        "apply the chat template to prompts, as the training of drafts does",
        default=True,
        action=argparse.BooleanOptionalAction,
    )
    seeds: tuple[int, ...] = option(
        "--seeds SEED", "seeds of the traffic, one run each", int, default=(0, 1, 2), nargs="+"
    )
    prompts_per_client: int = option(
        "--prompts-per-client N", "measured prompts", COUNT, default=10
    )
    warmups_per_client: int = option(
        "--warmups-per-client N", "unmeasured ones before", COUNT_OR_0, default=2
    )
    request_rate: float = option(
        "--request-rate R",
        "requests a second, Poisson; inf: all at once",
        POSITIVE,
        default=float("inf"),
    )


@dataclass(frozen=True)
class ResultFlags:
    """The record."""

    output: str = option(
        "--output DIR", "directory of the results, a file for each run", default="sweep"
    )
    gpus: int = option(
        "--gpus N",
        "number of GPUs that serve the model, for throughput per GPU",
        COUNT,
        default=1,
    )
    device: str | None = option("--device TEXT", "what the server runs on, for the record")
    percentiles: tuple[float, ...] = option(
        "--percentiles P",
        "percentiles of latencies to report",
        float,
        default=(50, 90, 99, 99.9),
        nargs="+",
    )


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(check=check_demo)
    for title, table in (("servers", ServerFlags), ("load", LoadFlags), ("result", ResultFlags)):
        add_options(parser.add_argument_group(title), table)


def run(flags: argparse.Namespace, console: Console) -> int:
    """Run the sweep, a file for each run; return 0, 1 if a request failed, 130 after Ctrl-C."""
    plan = read_plan(flags)
    into = Path(flags.output)
    into.mkdir(parents=True, exist_ok=True)
    runs = plan.runs * (1 if flags.url else len(flags.configurations))
    with SweepProgress(Console(stderr=True), runs) as progress:
        try:
            results = _results(flags, plan, into, progress)
        except KeyboardInterrupt as stopped:
            return status_of(stopped)
    print_result(console, results)
    failed = sum(result["eagle3"]["failed"] for result in results)
    if failed:
        console.print(f"{failed} REQUESTS FAILED")
    return 1 if failed else 0


def print_result(console: Console, results: Sequence[Mapping[str, Any]]) -> None:
    """Print a line for each configuration, length and concurrency: medians over the seeds."""
    rows, left = rows_of(results), ("configuration",)
    title = "Tokens/s and GPU, and times: medians over seeds of each run's median"
    console.print(table_of(title, SPEED, rows, left=left))
    console.print(table_of("What drafts gave, and what was said", SPOKEN, rows, left=left))
    if any(row.synthetic for row in rows):
        console.print(SYNTHETIC)


def read_plan(flags: argparse.Namespace) -> SweepPlan:
    """Make the plan from the flags; raise ValueError for contradictions."""
    if flags.url and (flags.model or flags.draft or flags.demo):
        raise ValueError("--url is a running server; leave MODEL, --draft and --demo out")
    if not flags.url:
        chosen = [Configuration.of(name) for name in flags.configurations]
        if flags.model and not flags.draft and any(configuration.k for configuration in chosen):
            raise ValueError("speculative configurations of MODEL need its draft: --draft DIR")
    if flags.sharegpt and flags.sampling != "sglang":
        raise ValueError("--sharegpt belongs to --sampling sglang")
    ratio = USUAL_RATIO[flags.sampling] if flags.range_ratio is None else flags.range_ratio
    usual = LENGTHS if flags.model or flags.url else DEMO_LENGTHS
    load = flags.sampling, ratio, flags.chat_template, flags.sharegpt
    own_device = "not said" if flags.url else conditions().cpu
    plan = SweepPlan(
        [Workload(isl, osl, *load) for isl, osl in flags.lengths or [usual]],
        flags.concurrency,
        flags.seeds,
        flags.prompts_per_client,
        flags.warmups_per_client,
        flags.request_rate,
        flags.endpoint,
        flags.percentiles,
        flags.gpus,
        flags.device or own_device,
    )
    assert plan.longest  # Refuses impossible lengths and ratios before a server starts.
    return plan


def _results(
    flags: argparse.Namespace, plan: SweepPlan, into: Path, progress: SweepProgress
) -> list[dict[str, Any]]:
    async def measured(name: str, url: str) -> list[dict[str, Any]]:
        model, tokenizer = flags.served_model_name, flags.tokenizer
        subject = await find_subject(name, url, flags.endpoint, model, tokenizer)
        return await measure(subject, plan, into, progress)

    if flags.url:
        return asyncio.run(measured(flags.label, flags.url))
    results = []
    for name in flags.configurations:
        progress.starting(name)
        configuration = Configuration.of(name)
        own = configuration.server_flags(plan, flags.model, flags.draft, flags.server_flags)
        with serving(own, into / f"{name}.server.log", READY_TIMEOUT_S) as (_, url):
            results += asyncio.run(measured(name, url))
    return results
