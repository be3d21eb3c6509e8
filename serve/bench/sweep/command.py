"""`eagle3-bench sweep` from its flags to its exit status."""

import argparse
import asyncio
from pathlib import Path
from typing import Any

from rich.console import Console

from serve.bench.server_process import serving, wait_ready
from serve.bench.sweep.configurations import Configuration
from serve.bench.sweep.flags import read_plan
from serve.bench.sweep.plan import Plan
from serve.bench.sweep.progress import SweepProgress
from serve.bench.sweep.sweep import find_subject, measure, own_flags
from serve.bench.sweep.tables import print_sweep
from serve.interrupt import INTERRUPTED

READY_TIMEOUT_S = 3600.0


def run_sweep(flags: argparse.Namespace, console: Console) -> int:
    """Returns 0, 1 when a request failed, 130 after Ctrl-C; results so far are in their files."""
    plan = read_plan(flags)
    into = Path(flags.output)
    into.mkdir(parents=True, exist_ok=True)
    runs = plan.runs * (1 if flags.url else len(flags.configurations))
    with SweepProgress(Console(stderr=True), runs) as progress:
        try:
            results = _results(flags, plan, into, progress)
        except KeyboardInterrupt:
            return INTERRUPTED
    print_sweep(console, results)
    failed = sum(result["eagle3"]["failed"] for result in results)
    if failed:
        console.print(f"{failed} REQUESTS FAILED")
    return 1 if failed else 0


def _results(
    flags: argparse.Namespace, plan: Plan, into: Path, progress: SweepProgress
) -> list[dict[str, Any]]:
    if flags.url:
        return asyncio.run(_measure(flags, flags.label, flags.url, plan, into, progress))
    results = []
    for name in flags.configurations:
        progress.starting(name)
        configuration = Configuration.of(name)
        own = own_flags(configuration, plan, flags.model, flags.draft, flags.server_flags)
        with serving(own, into / f"{name}.server.log") as (process, url):
            asyncio.run(wait_ready(url, process, READY_TIMEOUT_S))
            results += asyncio.run(_measure(flags, name, url, plan, into, progress))
    return results


async def _measure(
    flags: argparse.Namespace,
    name: str,
    url: str,
    plan: Plan,
    into: Path,
    progress: SweepProgress,
) -> list[dict[str, Any]]:
    subject = await find_subject(
        name, url, flags.endpoint, flags.served_model_name, flags.tokenizer
    )
    return await measure(subject, plan, into, progress)
