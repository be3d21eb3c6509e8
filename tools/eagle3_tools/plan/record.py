"""A plan as a JSON file."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eagle3_tools.plan.model.divided_context import DividedContext
from eagle3_tools.plan.model.host_memory import HostMemory
from eagle3_tools.plan.model.memory import ITEMSIZE, Memory
from eagle3_tools.plan.model.published_rows import Compared
from eagle3_tools.plan.model.rounds import Load, Round
from eagle3_tools.plan.planner import CapacityPlan


def write_plan(path: Path, plan: CapacityPlan, compared: Sequence[Compared]) -> None:
    fields = {
        "options": asdict(plan.options),
        "memory": _memory_fields(plan.memory),
        "fits": [asdict(fit) for fit in plan.fits],
        "limits": [{**asdict(limit), "binds": limit.binds} for limit in plan.limits],
        "loads": [_load_fields(load) for load in plan.loads],
        "own_loads": [_load_fields(load) for load in plan.own_loads],
        "lookups": [asdict(cost) for cost in plan.lookups],
        "divided": [
            _divided_fields(gpu, one, plan) for gpu, each in plan.divided.items() for one in each
        ],
        "data_parallel": [
            _decoding_fields(gpu, one, plan) | {"weights": one.memory.weights}
            for gpu, one in plan.data_parallel.items()
        ],
        "host_memory": _host_fields(plan.host),
        "published": [_published_fields(row) for row in compared],
    }
    text = json.dumps(fields, indent=2, allow_nan=False, default=str)
    path.write_text(text + "\n", encoding="utf-8")


def _memory_fields(memory: Memory) -> dict[str, Any]:
    kv = {
        dtype: {"token_bytes": memory.token_bytes(dtype), "tokens": memory.tokens(dtype)}
        for dtype in ITEMSIZE
    }
    sums = {name: getattr(memory, name) for name in ("weights", "for_pools", "gathered_bytes")}
    return {**asdict(memory), **sums, "kv": kv}


def _load_fields(load: Load) -> dict[str, Any]:
    return {
        "concurrency": load.concurrency,
        "limit": load.bound,
        "distinct_experts": load.distinct_experts,
        "plain_s": load.plain_s,
        "plain_tokens_per_s": load.plain_tokens_per_s,
        "best_k": load.best.num_speculative_tokens if load.rounds else 0,
        "rounds": [_round_fields(load, one) for one in load.rounds],
    }


def _round_fields(load: Load, one: Round) -> dict[str, Any]:
    return {
        **asdict(one),
        "verify_to_plain": load.verify_to_plain(one),
        "draft_share": one.draft_share,
        "break_even": load.break_even(one),
        "speedup": load.speedup(one),
        "tokens_per_s": load.tokens_per_s(one),
    }


def _decoding_fields(gpu: str, one: DividedContext, plan: CapacityPlan) -> dict[str, Any]:
    load, dtype = plan.decode_load, plan.options.kv_cache_dtype
    return {
        "gpu": gpu,
        "tokens": one.tokens(dtype),
        "sequences": one.sequences(load),
        "rounds": [asdict(one.round(load, count)) for count in plan.options.concurrency],
    }


def _divided_fields(gpu: str, one: DividedContext, plan: CapacityPlan) -> dict[str, Any]:
    size = one.memory.token_bytes(plan.options.kv_cache_dtype)
    own = {"decode_context_parallel_size": one.parts, "token_bytes": size}
    return _decoding_fields(gpu, one, plan) | own


def _host_fields(host: HostMemory) -> dict[str, Any]:
    return {
        "nbytes": host.nbytes,
        "token_bytes": host.token_bytes,
        "tokens": host.tokens,
        "gpus": {
            gpu: {
                "least_tokens": host.least_tokens(gpu),
                "prefixes": [
                    {
                        "tokens": tokens,
                        "load_one_link_s": host.load_s(tokens, 1),
                        "load_s": host.load_s(tokens, shapes.target.parallel.devices),
                        "prefill_s": host.prefill_s(gpu, tokens),
                    }
                    for tokens in host.prefixes
                ],
            }
            for gpu, shapes in host.shapes.items()
        },
    }


def _published_fields(row: Compared) -> dict[str, Any]:
    return {
        "setup": row.setup.name,
        "source": row.setup.source,
        **asdict(row.figure),
        "limit_ms": row.limit_ms,
        "measured_to_tuned": row.ratio("tuned"),
    }
