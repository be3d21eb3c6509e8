"""Measure one server at every length, concurrency and seed, with a result file for each run."""

import json
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from convert.text.tokenizer import Tokenizer, load_tokenizer
from eagle3_jax.replace_file import replaced
from eagle3_tools.bench.common.conditions import Conditions, conditions
from eagle3_tools.bench.load.counters import between, fetch_counts
from eagle3_tools.bench.load.http_client import Address
from eagle3_tools.bench.load.lengths import Endpoint
from eagle3_tools.bench.load.openai_server import Server, first_model, version
from eagle3_tools.bench.load.prompts import make_prompts
from eagle3_tools.bench.load.traffic import send, warm_up
from eagle3_tools.bench.sweep.configurations import SweepPlan
from eagle3_tools.bench.sweep.progress import SweepProgress
from eagle3_tools.bench.sweep.result import Point, point_of, result_json


@dataclass(frozen=True)
class Subject:
    """A server under test; `configuration` is its name in results."""

    configuration: str
    server: Server
    tokenizer: Tokenizer
    tokenizer_name: str
    version: str


def write_result(directory: Path, result: dict[str, Any]) -> Path:
    """Write the file of a run atomically."""
    path = directory / f"{point_of(result)}.json"
    with replaced(path) as file:
        file.write(json.dumps(result, indent=1, allow_nan=False).encode())
    return path


async def measure(
    subject: Subject, plan: SweepPlan, into: Path, progress: SweepProgress
) -> list[dict[str, Any]]:
    """Run all points on one server; write each result before the next run begins."""
    results, found = [], conditions()
    for where in product(plan.workloads, plan.concurrencies, plan.seeds):
        what = subject.configuration, subject.server.model, subject.tokenizer_name
        point = Point(*what, *where, plan.rate, plan.gpus, plan.device, subject.version)
        results.append(await _run(subject, plan, point, found, progress))
        write_result(into, results[-1])
    return results


async def _run(
    subject: Subject, plan: SweepPlan, point: Point, found: Conditions, progress: SweepProgress
) -> dict[str, Any]:
    server, address, concurrency = subject.server, subject.server.address, point.concurrency
    count = plan.prompts_per_client * concurrency
    prompts = make_prompts(point.workload, subject.tokenizer, count, point.seed)
    progress.begin(point, count)
    warmups = plan.warmups_per_client * concurrency
    await warm_up(server, prompts[0], warmups, concurrency)
    before = await fetch_counts(address)
    traffic = await send(
        server,
        prompts,
        concurrency,
        rate=plan.rate,
        seed=point.seed,
        on_outcome=progress.on_outcome,
    )
    counts = between(before, await fetch_counts(address))
    encode = subject.tokenizer.encode
    result = result_json(point, prompts, traffic, counts, encode, found, plan.percentiles)
    progress.end(result)
    return result


async def find_subject(
    name: str, url: str, endpoint: Endpoint, model: str | None, tokenizer: str | None
) -> Subject:
    """Query a running server for its model, tokenizer and version.

    Raises OSError if it does not answer, ValueError if its tokenizer is not available here.
    """
    address = Address.of(url)
    card = await first_model(address)
    source = tokenizer or card.get("root") or card["id"]
    try:
        read = load_tokenizer(source)
    except OSError as error:
        raise ValueError(
            "random prompts need the model's tokenizer, --tokenizer MODEL; the server names one "
            f"that is not here: {error}"
        ) from error
    server = Server(address, model or card["id"], endpoint)
    return Subject(name, server, read, source, await version(address))
