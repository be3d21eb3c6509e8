"""Accept length on held-out prompts or tasks, with a pair in this process or on a server."""

import argparse
import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from convert.command_line.options import COUNT, add_options
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.sampling.params import SamplingParams
from eagle3_jax.speculative.method import COUPLED
from eagle3_tools.bench.acceptance.answerers import (
    ANSWER_TOKENS,
    PromptMaker,
    ServerAnswerer,
    accept_tables,
    measure_tasks,
)
from eagle3_tools.bench.acceptance.kv_scales import measure_kv_scales
from eagle3_tools.bench.acceptance.methods import (
    COMPARED,
    MethodRow,
    compare_methods,
    methods_table,
)
from eagle3_tools.bench.acceptance.picture_terms import (
    REFERENCE,
    WITHOUT_OPTIONS,
    WRITTEN,
    PictureTerms,
    count_pictures,
    terms_here,
)
from eagle3_tools.bench.acceptance.tasks import Task, held_out_tasks, read_tasks
from eagle3_tools.bench.common.accept_length import AcceptRow
from eagle3_tools.bench.common.command import finish, given_pair
from eagle3_tools.bench.common.conditions import conditions
from eagle3_tools.bench.common.flags import add_pair_flags, add_shared, check_demo, check_drafting
from eagle3_tools.bench.common.held_out import held_out
from eagle3_tools.bench.load.http_client import Address
from eagle3_tools.bench.load.openai_server import first_model
from serve.chat_setup import set_up_images
from serve.images.options import ImageEngineFlags, ImageOptions
from serve.options.engine import add_engine_flags, read_engine_config, write_kv_scales
from serve.options.pair import ModelFlags
from serve.options.parallel import (
    ONE_DEVICE,
    add_parallel_flags,
    notify_of_interleaving,
    read_parallel_options,
)
from serve.options.speculation import read_speculation
from serve.pair.notices import print_to_stderr
from serve.sandbox.sandbox import WHOLE_PROCESS
from serve.text_table import text_table

TASK_TOKENS = 512
"""Default limit of answers to tasks from --data."""
NAMED = ("num_speculative_tokens", "eagle_topk", "num_draft_tokens", "rejection_sample_method")
HELD_OUT = "Held-out prompts"


@dataclass(frozen=True)
class AcceptRecord:
    """Result of `eagle3-bench accept`. `terms` is set if images were shown."""

    num_speculative_tokens: int
    eagle_topk: int
    num_draft_tokens: int | None
    temperature: float
    rows: list[AcceptRow]
    tasks: str = HELD_OUT
    terms: PictureTerms | None = None


@dataclass(frozen=True)
class MethodsRecord:
    """Result of `eagle3-bench accept --compare-methods`."""

    num_speculative_tokens: int
    rows: list[MethodRow]


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the pair or server, of speculation, and of the prompts."""
    parser.set_defaults(check=_check)
    add_pair_flags(parser, draft=False)
    add_engine_flags(parser, keys=True)
    add_parallel_flags(parser)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy")
    add_shared(parser, "--prompts", default=40, help="prompts a category, at most")
    parser.add_argument("--data", metavar="DIR", help="tasks: its *.jsonl and *.parquet files")
    _add_picture_flags(parser)
    parser.add_argument(
        "--max-tokens", type=COUNT, metavar="N", help="tokens of an answer; default 160 (data: 512)"
    )
    parser.add_argument(
        "--compare-methods",
        action="store_true",
        help="every acceptance method with probabilistic and greedy drafts, at temperatures 0.6 "
        "and 1, on the held-out prompts",
    )
    parser.add_argument(
        "--measure-kv-scales",
        metavar="FILE",
        help="write factors of a float8 KV cache there (for --kv-cache-scale), and nothing else",
    )
    parser.add_argument(
        "--url",
        metavar="URL",
        help="address of a running OpenAI server to measure instead of a pair",
    )
    parser.add_argument(
        "--served-model-name",
        metavar="NAME",
        help="model's name at --url; default: the first that it lists",
    )
    parser.add_argument(
        "--concurrency", type=COUNT, default=8, metavar="N", help="requests at a time, at URL"
    )


def _add_picture_flags(parser: argparse.ArgumentParser) -> None:
    add_options(parser, ModelFlags, "demo_vision")
    parser.add_argument(
        "--drop-options",
        action="store_true",
        help="cut questions about pictures before `Options:`, as SpecForge does; none is judged",
    )
    add_options(parser, ImageEngineFlags, "mm_draft_embedding")


def _check(flags: argparse.Namespace) -> None:
    check_demo(flags)
    embedded = flags.demo or not (flags.model or flags.draft)
    speculation = read_speculation(argparse.Namespace(**{**vars(flags), "demo": embedded}))
    flags.draft, flags.draft_revision = speculation.draft, speculation.revision
    flags.speculative_config = None
    flags.k = speculation.engine["num_speculative_tokens"]
    flags.rejection_sample_method = speculation.engine.get("rejection_sample_method", "coupled")
    flags.parallel = read_parallel_options(flags, speculation.draft_tensor_parallel_size)
    check_drafting(flags, methods=COMPARED)
    flags.engine = read_engine_config(flags, speculation)
    if flags.url and (flags.engine, flags.parallel) != (EngineConfig(), ONE_DEVICE):
        raise ValueError("--url is a running server: leave the options of an engine out")
    if flags.temperature < 0:
        raise ValueError(f"--temperature must be 0 or more; got {flags.temperature}")
    if flags.url and (flags.model or flags.demo or flags.tokenizer):
        raise ValueError("--url is a running server; leave MODEL and what goes with it out")
    if flags.compare_methods:
        _check_comparison(flags)
    if flags.measure_kv_scales and (flags.data or flags.url):
        raise ValueError("--measure-kv-scales asks held-out prompts here: leave --data, --url out")
    if flags.measure_kv_scales and flags.engine.kv_cache_dtype != "auto":
        raise ValueError("--measure-kv-scales needs a cache of the model's dtype, not float8")
    if flags.max_tokens and not (flags.data or flags.url):
        raise ValueError("--max-tokens belongs to --data or --url")
    if (flags.drop_options or flags.mm_draft_embedding) and not flags.data:
        raise ValueError("--drop-options and --mm-draft-embedding belong to --data with pictures")


def _check_comparison(flags: argparse.Namespace) -> None:
    if flags.data or flags.url or flags.measure_kv_scales or flags.temperature:
        raise ValueError(
            "--compare-methods asks held-out prompts here at temperatures of its own: leave "
            "--data, --url, --measure-kv-scales and --temperature out"
        )
    if flags.engine.method != COUPLED or flags.engine.exact:
        raise ValueError(
            "--compare-methods tries every method on chains: leave rejection_sample_method, "
            "draft_sample_method, trees and --exact out"
        )


def run(flags: argparse.Namespace, console: Console) -> int:
    """Measure accept length by category, in this process or on a server."""
    found, engine = conditions(), flags.engine
    parts, asked = engine.decode_context_parallel_size, flags.kv_cache_interleave_size
    notify_of_interleaving(asked, parts, engine.page_size, print_to_stderr)
    if flags.measure_kv_scales:
        _write_kv_scales(flags, console)
        return 0
    if flags.compare_methods:
        return _compare(flags, console)
    measured = _at_url(flags) if flags.url else _here(flags)
    k = len(measured.rows[-1].per_position) if flags.url else engine.num_speculative_tokens
    tree = (engine.eagle_topk, engine.num_draft_tokens)
    record = AcceptRecord(k, *tree, flags.temperature, *measured)
    print_result(console, record)
    return finish(flags, "accept", found, record)


def _compare(flags: argparse.Namespace, console: Console) -> int:
    found, pair = conditions(), given_pair(flags)
    tasks = held_out_tasks(flags.prompts)
    rows = list(compare_methods(pair, tasks, flags.engine, flags.max_model_len))
    title = f"{len(tasks)} held-out prompts, k={flags.k}: accept length by temperature"
    console.print(methods_table(title, rows))
    return finish(flags, "accept", found, MethodsRecord(flags.k, rows))


def print_result(console: Console, record: AcceptRecord) -> None:
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
    if record.terms:
        console.print(f"{record.terms.sentence()}\nno target, other terms: {REFERENCE}")


def _known(value: float, form: str) -> str:
    return "-" if math.isnan(value) else f"{value:{form}}"


def _write_kv_scales(flags: argparse.Namespace, console: Console) -> None:
    pair = given_pair(flags)
    prompts = held_out(pair.tokenizer, flags.prompts)
    scales, measured_on = measure_kv_scales(pair, prompts, flags.engine, ANSWER_TOKENS)
    write_kv_scales(Path(flags.measure_kv_scales), scales, measured_on)
    console.print(f"{flags.measure_kv_scales}: {len(scales.target)} + {len(scales.draft)} factors")


class Measured(NamedTuple):
    """Rows and the title of their table."""

    rows: list[AcceptRow]
    title: str
    terms: PictureTerms | None = None


def _here(flags: argparse.Namespace) -> Measured:
    engine_config: EngineConfig = flags.engine
    topk, nodes = engine_config.eagle_topk, engine_config.num_draft_tokens
    drafts = f"k={flags.k}{f' (topk {topk}, {nodes} nodes)' if topk > 1 else ''}"
    how = f"{drafts}, {flags.rejection_sample_method}, temperature {flags.temperature:g}"
    how += "".join(f", {name} {value}" for name, value in _others(engine_config))
    if (devices := flags.parallel.tensor_parallel_size) > 1:
        how += f", {devices} devices"
    # Before loading weights, so that a bad file is reported at once.
    tasks, sampling = _tasks(flags), _sampling(flags)
    terms = _terms(flags, tasks)
    pair = given_pair(flags, vision=terms is not None)
    limits = ImageOptions()
    make_prompt = PromptMaker(pair.tokenizer, set_up_images(limits, pair.vision, WHOLE_PROCESS))
    asked = make_prompt, tasks, engine_config, [sampling], flags.max_model_len
    (rows,) = accept_tables(pair, *asked)
    if terms and pair.vision:
        policy, template = engine_config.mm_draft_embedding, pair.tokenizer.template_text
        terms = terms_here(terms, policy, template, pair.vision.config, limits)
    return Measured(rows, f"{flags.data or HELD_OUT}, {how}", terms)


def _tasks(flags: argparse.Namespace) -> list[Task]:
    if not flags.data:
        return held_out_tasks(flags.prompts)
    return read_tasks(flags.data, flags.prompts, drop_options=flags.drop_options)


def _terms(flags: argparse.Namespace, tasks: Sequence[Task]) -> PictureTerms | None:
    if not (pictures := count_pictures(tasks)):
        return None
    question = WITHOUT_OPTIONS if flags.drop_options else WRITTEN
    return PictureTerms(pictures, question, _sampling(flags).max_tokens or 0)


def _others(config: EngineConfig) -> Iterator[tuple[str, Any]]:
    """Yield options that differ from their defaults, except those that every title names."""
    for option in fields(config):
        value = getattr(config, option.name)
        if option.name not in NAMED and value != option.default:
            yield option.name, value


def _at_url(flags: argparse.Namespace) -> Measured:
    tasks = _tasks(flags)
    address = Address.of(flags.url)
    model = flags.served_model_name or asyncio.run(first_model(address))["id"]
    answerer = ServerAnswerer(address, model, _sampling(flags), flags.concurrency)
    rows = measure_tasks(answerer, tasks)
    what = f"{flags.data or HELD_OUT}, {model} at {flags.url}"
    title = f"{what}, temperature {flags.temperature:g}"
    return Measured(rows, title, _terms(flags, tasks))


def _sampling(flags: argparse.Namespace) -> SamplingParams:
    tokens = flags.max_tokens or (TASK_TOKENS if flags.data else ANSWER_TOKENS)
    return SamplingParams(temperature=flags.temperature, max_tokens=tokens, seed=0)
