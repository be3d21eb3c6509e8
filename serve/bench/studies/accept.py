"""The accept length of drafts on held-out prompts or tasks, of a pair here or of a server."""

import argparse
import asyncio
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from rich.console import Console

from convert.text.tokenizer import load_tokenizer
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.sampling.params import SamplingParams
from serve.bench.acceptance.answerers import EngineAnswerer, ServerAnswerer, measure_tasks
from serve.bench.acceptance.tasks import Task, held_out_tasks, read_tasks
from serve.bench.common.accept_length import ANSWER_TOKENS, AcceptRow, accept_table
from serve.bench.common.command import finish, given_pair
from serve.bench.common.conditions import conditions
from serve.bench.common.flags import add_pair_flags, add_shared, check_demo, check_drafting
from serve.bench.common.held_out import held_out
from serve.bench.load.http_client import Address
from serve.bench.load.server_facts import first_model
from serve.demo import demo_target_dir
from serve.options.engine import add_engine_flags, read_engine_config
from serve.options.speculation import read_speculation
from serve.pair.loading import LoadedPair, build_engine, fit_length
from serve.text_table import text_table

TASK_TOKENS = 512
"""Answers to tasks of one's own, unless --max-tokens says more or less."""
NAMED = ("num_speculative_tokens", "eagle_topk", "num_draft_tokens", "rejection_sample_method")
TURN_TOKENS = 16
"""What a template puts around a turn and its answer, at most."""


@dataclass(frozen=True)
class AcceptRecord:
    """What `eagle3-bench accept` found."""

    num_speculative_tokens: int
    eagle_topk: int
    num_draft_tokens: int | None
    temperature: float
    rows: list[AcceptRow]
    tasks: str = "Held-out prompts"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """The pair or server, what is drafted, and what is asked."""
    parser.set_defaults(check=_check)
    add_pair_flags(parser, draft=False)
    add_engine_flags(parser, keys=True)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    add_shared(parser, "--prompts", default=40, help="prompts a category, at most")
    parser.add_argument("--data", metavar="DIR", help="tasks: its *.jsonl files")
    parser.add_argument(
        "--max-tokens", type=int, metavar="N", help="tokens of an answer; default 160 (data: 512)"
    )
    parser.add_argument("--url", metavar="URL", help="a running OpenAI server instead of a pair")
    parser.add_argument("--served-model-name", metavar="NAME", help="at URL; its first")
    parser.add_argument(
        "--concurrency", type=int, default=8, metavar="N", help="requests at a time, at URL"
    )


def _check(flags: argparse.Namespace) -> None:
    check_demo(flags)
    embedded = flags.demo or not (flags.model or flags.draft)
    speculation = read_speculation(argparse.Namespace(**{**vars(flags), "demo": embedded}))
    flags.draft, flags.draft_revision = speculation.draft, speculation.revision
    flags.k = speculation.engine["num_speculative_tokens"]
    flags.rejection_sample_method = speculation.engine.get("rejection_sample_method", "coupled")
    check_drafting(flags, methods=("coupled", "standard"))
    flags.engine = read_engine_config(flags, speculation)
    if flags.url and flags.engine != EngineConfig():
        raise ValueError("--url is a running server: leave the options of an engine out")
    if speculation.draft_tensor_parallel_size not in (None, 1):
        raise ValueError("accept runs on one device: leave draft_tensor_parallel_size out")
    if flags.temperature < 0:
        raise ValueError(f"--temperature must be 0 or more; got {flags.temperature}")
    if flags.url and (flags.model or flags.demo):
        raise ValueError("--url is a running server; leave MODEL, --draft and --demo out")
    if flags.max_tokens and not (flags.data or flags.url):
        raise ValueError("--max-tokens belongs to --data or --url")


def run(flags: argparse.Namespace, console: Console) -> int:
    """Accept length by category, here or of a server."""
    found = conditions()
    title, rows = accept_at_url(flags) if flags.url else accept_here(flags, given_pair(flags))
    engine: EngineConfig = flags.engine
    k = len(rows[-1].per_position) if flags.url else engine.num_speculative_tokens
    tree = (engine.eagle_topk, engine.num_draft_tokens)
    record = AcceptRecord(k, *tree, temperature=flags.temperature, rows=rows, tasks=title)
    print_result(console, record)
    return finish(flags, "accept", found, record)


def print_result(console: Console, record: AcceptRecord) -> None:
    """Accept length by category."""
    headings = ["category", "prompts", "tokens", "rounds", "accept length"]
    headings += [f"position {i + 1}" for i in range(len(record.rows[0].per_position))]
    headings += ["rounds by accepted", "distinct bigrams", "answers right"]
    table = text_table(record.tasks, headings, left=("category",))
    for row in record.rows:
        shares = (f"{share:.2f}" for share in row.per_position)
        counts = (f"{row.prompts}", f"{row.tokens}", f"{row.counts.drafts}")
        length = f"{row.accept_length:.2f}"
        rounds = "/".join(map(str, row.histogram)) or "-"
        said = (_known(row.distinct_bigrams, ".2f"), _known(row.right, ".0%"))
        table.add_row(row.category, *counts, length, *shares, rounds, *said)
    console.print(table)


def _known(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def accept_here(flags: argparse.Namespace, pair: LoadedPair) -> tuple[str, list[AcceptRow]]:
    """A title and the rows of a pair in this process."""
    engine_config: EngineConfig = flags.engine
    topk, nodes = engine_config.eagle_topk, engine_config.num_draft_tokens
    drafts = f"k={flags.k}{f' (topk {topk}, {nodes} nodes)' if topk > 1 else ''}"
    how = f"{drafts}, {flags.rejection_sample_method}, temperature {flags.temperature:g}"
    how += "".join(f", {name} {value}" for name, value in _others(engine_config))
    length = flags.max_model_len
    if not flags.data:
        prompts = held_out(pair.tokenizer, flags.prompts)
        rows = accept_table(pair, prompts, engine_config, flags.temperature, max_model_len=length)
        return f"Held-out prompts, {how}", rows
    tasks, sampling = read_tasks(flags.data, flags.prompts), _sampling(flags)
    room = length or _room(pair, tasks, sampling)
    fitting = fit_length(engine_config, room, pair.target.config)
    engine = build_engine(pair, fitting, clock=time.perf_counter)
    rows = measure_tasks(EngineAnswerer(engine, pair.tokenizer, sampling, room), tasks)
    return f"{flags.data}, {how}", rows


def _others(config: EngineConfig) -> Iterator[tuple[str, Any]]:
    """Options that are not the default's, but for those that every title names."""
    for option in fields(config):
        value = getattr(config, option.name)
        if option.name not in NAMED and value != option.default:
            yield option.name, value


def accept_at_url(flags: argparse.Namespace) -> tuple[str, list[AcceptRow]]:
    """A title and the rows of a running server."""
    if flags.data:
        tasks = read_tasks(flags.data, flags.prompts)
    else:
        tasks = held_out_tasks(held_out(load_tokenizer(demo_target_dir()), flags.prompts))
    address = Address.of(flags.url)
    model = flags.served_model_name or asyncio.run(first_model(address))["id"]
    answerer = ServerAnswerer(address, model, _sampling(flags), flags.concurrency)
    rows = measure_tasks(answerer, tasks)
    what = flags.data or "Held-out prompts"
    return f"{what}, {model} at {flags.url}, temperature {flags.temperature:g}", rows


def _sampling(flags: argparse.Namespace) -> SamplingParams:
    tokens = flags.max_tokens or (TASK_TOKENS if flags.data else ANSWER_TOKENS)
    return SamplingParams(temperature=flags.temperature, max_tokens=tokens, seed=0)


def _room(pair: LoadedPair, tasks: list[Task], sampling: SamplingParams) -> int:
    """A context for the longest conversation, as far as the model has it."""

    def most(task: Task) -> int:
        begun = pair.tokenizer.encode_chat(list(task.messages), tools=list(task.tools) or None)
        later = sum(len(pair.tokenizer.encode(text)) + TURN_TOKENS for text in task.later)
        return len(begun) + later + (1 + len(task.later)) * (sampling.max_tokens or 0)

    return min(max(map(most, tasks)), pair.target.config.max_position_embeddings)
