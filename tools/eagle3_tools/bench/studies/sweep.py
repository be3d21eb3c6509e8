"""Measure throughput and latency of OpenAI servers over lengths and concurrency."""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from convert.command_line.stopping import status_of
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.common.flags import check_demo
from eagle3_tools.bench.load.lengths import SAMPLINGS, USUAL_RATIO, Workload
from eagle3_tools.bench.load.server_process import serving
from eagle3_tools.bench.sweep.configurations import Configuration, SweepPlan
from eagle3_tools.bench.sweep.measure import find_subject, measure
from eagle3_tools.bench.sweep.progress import SweepProgress
from eagle3_tools.bench.sweep.rows import SPEED, SPOKEN, SYNTHETIC, rows_of
from eagle3_tools.checks.check import table_of

READY_TIMEOUT_S = 3600.0
LENGTHS, DEMO_LENGTHS = ["1024/1024"], ["256/128"]
"""ISL/OSL. The embedded pair has a context of 1024 tokens."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of servers, load and results."""
    parser.set_defaults(check=check_demo)
    _add_servers(parser.add_argument_group("servers"))
    _add_load(parser.add_argument_group("load"))
    _add_result(parser.add_argument_group("result"))


def _add_servers(group: Any) -> None:
    group.add_argument("model", metavar="MODEL", nargs="?", help="start servers of this target")
    group.add_argument("--draft", metavar="DRAFT", help="draft of MODEL")
    group.add_argument(
        "--demo",
        action="store_true",
        help="use the small embedded model pair (the default without MODEL and --url)",
    )
    group.add_argument(
        "--configurations",
        nargs="+",
        default=["plain", "k3"],
        metavar="NAME",
        help="plain, kN (N drafts a round), goldenN (synthetic acceptance at InferenceX's length)",
    )
    group.add_argument(
        "--server-flags",
        nargs=argparse.REMAINDER,
        default=[],
        help="flags of eagle3-serve for these servers; must be the last flag here",
    )
    group.add_argument(
        "--url", metavar="URL", help="address of a running OpenAI server to measure instead"
    )
    group.add_argument(
        "--label", default="server", metavar="NAME", help="name of that server in results"
    )
    group.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="model's name at --url; default: the first that it lists",
    )
    group.add_argument(
        "--tokenizer", metavar="MODEL", help="tokenizer directory or hub id, if the model has none"
    )
    group.add_argument(
        "--endpoint",
        choices=("completions", "chat"),
        default="completions",
        help="endpoint of the server",
    )


def _add_load(group: Any) -> None:
    group.add_argument(
        "--lengths",
        nargs="+",
        metavar="ISL/OSL",
        help="tokens of prompt and answer; default 1024/1024 (demo: 256/128)",
    )
    several = {"type": int, "nargs": "+", "metavar": "C", "default": [4, 8, 16, 32, 64]}
    group.add_argument("--concurrency", **several, help="requests at a time")
    group.add_argument(
        "--sampling",
        choices=SAMPLINGS,
        default="inferencex",
        help="client whose rule draws lengths and prompts",
    )
    group.add_argument(
        "--range-ratio",
        type=float,
        metavar="R",
        help="spread of the random lengths, as that client defines it; default 0.8, 0, 0",
    )
    group.add_argument(
        "--sharegpt",
        metavar="FILE",
        help="ShareGPT file whose prompts SGLang's `random` data set repeats",
    )
    group.add_argument(
        "--chat-template",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="apply the chat template to prompts, as the training of drafts does",
    )
    add, seeds = group.add_argument, {"type": int, "nargs": "+", "metavar": "SEED"}
    add("--seeds", **seeds, default=[0, 1, 2], help="seeds of the traffic, one run each")
    add("--prompts-per-client", type=int, default=10, metavar="N", help="measured prompts")
    add("--warmups-per-client", type=int, default=2, metavar="N", help="unmeasured ones before")
    group.add_argument(
        "--request-rate",
        type=float,
        default=float("inf"),
        metavar="R",
        help="requests a second, Poisson; inf: all at once",
    )


def _add_result(group: Any) -> None:
    group.add_argument(
        "--output",
        default="sweep",
        metavar="DIR",
        help="directory of the results, a file for each run",
    )
    group.add_argument(
        "--gpus",
        type=int,
        default=1,
        metavar="N",
        help="number of GPUs that serve the model, for throughput per GPU",
    )
    group.add_argument("--device", metavar="TEXT", help="what the server runs on, for the record")
    group.add_argument(
        "--percentiles",
        type=float,
        nargs="+",
        default=[50, 90, 99, 99.9],
        metavar="P",
        help="percentiles of latencies to report",
    )


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
    if not flags.request_rate > 0:
        raise ValueError(f"--request-rate must be positive; got {flags.request_rate}")
    if min(flags.prompts_per_client, flags.gpus, *flags.concurrency) < 1:
        raise ValueError("--prompts-per-client, --gpus and --concurrency must be at least 1")
    ratio = USUAL_RATIO[flags.sampling] if flags.range_ratio is None else flags.range_ratio
    lengths = flags.lengths or (LENGTHS if flags.model or flags.url else DEMO_LENGTHS)
    own_device = "not said" if flags.url else conditions().cpu
    plan = SweepPlan(
        [
            Workload(
                *parse_lengths(text), flags.sampling, ratio, flags.chat_template, flags.sharegpt
            )
            for text in lengths
        ],
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


def parse_lengths(text: str) -> tuple[int, int]:
    """Parse ISL/OSL; raise ValueError for anything else."""
    isl, _, osl = text.partition("/")
    if not (isl.isdigit() and osl.isdigit() and int(isl) and int(osl)):
        raise ValueError(f"--lengths are ISL/OSL in tokens, such as 1024/1024; got {text!r}")
    return int(isl), int(osl)


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
