"""What `eagle3-bench accept` measures: the held-out prompts or tasks, here or at a server."""

import argparse
import asyncio

from eagle3_jax.sampling_params import SamplingParams
from serve.bench.accept import ANSWER_TOKENS, AcceptRow, accept_table
from serve.bench.accept_tasks import EngineSide, UrlSide, measure_tasks
from serve.bench.held_out import held_out
from serve.bench.http_stream import Address
from serve.bench.sweep.server_facts import first_model
from serve.bench.tasks import Task, held_out_tasks, read_tasks
from serve.demo import demo_target_dir
from serve.loading import LoadedPair, build_engine

TASK_TOKENS = 512
"""Answers to tasks of one's own, unless --max-tokens says more or less."""


def accept_here(flags: argparse.Namespace, pair: LoadedPair) -> tuple[str, list[AcceptRow]]:
    """A title and the rows of a pair in this process."""
    tree = {"eagle_topk": flags.eagle_topk, "num_draft_tokens": flags.num_draft_tokens}
    method = flags.rejection_sample_method
    shape = f" (topk {flags.eagle_topk}, {flags.num_draft_tokens} nodes)"
    drafts = f"k={flags.k}{shape if flags.eagle_topk > 1 else ''}"
    how = f"{drafts}, {method}, temperature {flags.temperature:g}"
    if not flags.data:
        prompts = held_out(pair.tokenizer, flags.prompts)
        rows = accept_table(
            pair, prompts, flags.k, flags.temperature, **tree, rejection_sample_method=method
        )
        return f"Held-out prompts, {how}", rows
    tasks = read_tasks(flags.data, flags.prompts)
    sampling = _sampling(flags, TASK_TOKENS)
    room = _room(pair, tasks, sampling)
    engine = build_engine(
        pair,
        num_speculative_tokens=flags.k,
        max_model_len=room,
        **tree,
        rejection_sample_method=method,
    )
    rows = measure_tasks(EngineSide(engine, pair.tokenizer, sampling, room), tasks)
    return f"{flags.data}, {how}", rows


def accept_at_url(flags: argparse.Namespace) -> tuple[str, list[AcceptRow]]:
    """A title and the rows of a running server."""
    if flags.data:
        tasks = read_tasks(flags.data, flags.prompts)
        sampling = _sampling(flags, TASK_TOKENS)
    else:
        from convert.tokenizer import load_tokenizer

        tasks = held_out_tasks(held_out(load_tokenizer(demo_target_dir()), flags.prompts))
        sampling = _sampling(flags, ANSWER_TOKENS)
    address = Address.of(flags.url)
    model = flags.served_model_name or asyncio.run(first_model(address))["id"]
    side = UrlSide(address, model, sampling, flags.concurrency)
    rows = measure_tasks(side, tasks)
    what = flags.data or "Held-out prompts"
    return f"{what}, {model} at {flags.url}, temperature {flags.temperature:g}", rows


def _sampling(flags: argparse.Namespace, usual_tokens: int) -> SamplingParams:
    tokens = flags.max_tokens or usual_tokens
    return SamplingParams(temperature=flags.temperature, max_tokens=tokens, seed=0)


def _room(pair: LoadedPair, tasks: list[Task], sampling: SamplingParams) -> int:
    """A context for the longest conversation, as far as the model has it."""

    def most(task: Task) -> int:
        begun = pair.tokenizer.encode_chat(list(task.messages), tools=list(task.tools) or None)
        later = sum(len(pair.tokenizer.encode(text)) + TURN_TOKENS for text in task.later)
        return len(begun) + later + (1 + len(task.later)) * (sampling.max_tokens or 0)

    return min(max(map(most, tasks)), pair.target.config.max_position_embeddings)


TURN_TOKENS = 16
"""What a template puts around a turn and its answer, at most."""
