"""A plan: what a pair needs on some devices, and what it could do there."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax.numpy as jnp

from convert.from_config import draft_from_config, target_from_config
from convert.safetensors_files import read_json
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from serve.plan.draft_work import draft_shape
from serve.plan.gpus import GPUS, Gpu
from serve.plan.kernels import BOUNDS
from serve.plan.limits import Limit, limits
from serve.plan.memory import ITEMSIZE, Memory, lacking_bytes, plan_memory, too_big
from serve.plan.options import PlanOptions
from serve.plan.parallel import MOST_DEVICES, Parallelism
from serve.plan.rounds import Load, Shapes
from serve.plan.split import check_divides, indivisible
from serve.plan.target_work import Rows, target_shape


@dataclass(frozen=True)
class AbstractPair:
    """Models as shapes."""

    target: KimiTarget
    draft: Eagle3Draft | None


@dataclass(frozen=True)
class Plan:
    """memory: of each device. loads: every concurrency under both limits, datasheet first."""

    options: PlanOptions
    memory: Memory
    limits: tuple[Limit, ...]
    loads: tuple[Load, ...]


def read_pair(options: PlanOptions) -> AbstractPair:
    """The models of the options' config.json files.

    Raises FileNotFoundError and ValueError, naming the file.
    """
    target = _read(options.model, target_from_config)
    if options.draft is None:
        return AbstractPair(target, None)
    count = target.config.num_hidden_layers
    draft = _read(options.draft, draft_from_config, num_target_layers=count)
    if draft.config.target_hidden_size != target.config.hidden_size:
        raise ValueError(
            f"{options.draft} drafts for a target of hidden size "
            f"{draft.config.target_hidden_size}, {options.model} has {target.config.hidden_size}"
        )
    return AbstractPair(target, draft)


def make_plan(options: PlanOptions, pair: AbstractPair) -> Plan:
    """Raises ValueError where the devices do not divide the pair or where it does not fit."""
    gpu, dtype = GPUS[options.gpu], options.kv_cache_dtype
    check_divides(options.parallel, pair.target, pair.draft)
    memory = _memory(options, pair, gpu, options.parallel)
    if lacking_bytes(memory, options.max_model_len, dtype):
        what = too_big(memory, options.parallel.devices, options.max_model_len, dtype)
        raise ValueError(f"{what}; {_remedy(options, pair)}")
    return Plan(
        options,
        memory,
        tuple(limits(memory, dtype)),
        tuple(_loads(options, pair, gpu)),
    )


def _read(path: Path, build: Any, **arguments: Any) -> Any:
    """A model of a config.json, given itself or its directory."""
    if not path.exists():
        raise FileNotFoundError(
            f"{path} does not exist; a config.json or a directory with one was expected"
        )
    file = path / "config.json" if path.is_dir() else path
    try:
        return build(read_json(file), jnp.bfloat16, **arguments)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: {error}") from error


def _memory(options: PlanOptions, pair: AbstractPair, gpu: Gpu, parallel: Parallelism) -> Memory:
    config = EngineConfig(
        num_speculative_tokens=options.num_speculative_tokens if pair.draft else 0,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        page_size=options.page_size,
    )
    return plan_memory(
        pair.target, pair.draft, gpu, parallel, config, options.gpu_memory_utilization
    )


def _loads(options: PlanOptions, pair: AbstractPair, gpu: Gpu) -> Iterator[Load]:
    parallel = options.parallel
    draft = draft_shape(pair.draft, parallel) if pair.draft else None
    shapes = Shapes(target_shape(pair.target, parallel), draft, gpu)
    context = options.isl + options.osl / 2
    for bound in BOUNDS:
        for batch in options.concurrency:
            rows = Rows(batch, 1, context, ITEMSIZE[options.kv_cache_dtype])
            yield shapes.load(rows, bound, options.accept_lengths)


def _remedy(options: PlanOptions, pair: AbstractPair) -> str:
    """More devices where that helps, else everything else there is."""
    for devices in range(options.parallel.devices + 1, MOST_DEVICES + 1):
        wider = options.parallel.over(devices)
        if not indivisible(wider, pair.target, pair.draft) and _fits(options, pair, wider):
            return f"--tensor-parallel-size {devices} is the least that would do"
    return (
        "a checkpoint of fewer bits, a device with more memory, --kv-cache-dtype fp8 or a smaller "
        "--max-model-len would help"
    )


def _fits(options: PlanOptions, pair: AbstractPair, parallel: Parallelism) -> bool:
    try:
        memory = _memory(options, pair, GPUS[options.gpu], parallel)
    except ValueError:  # values that share a scale would be parted
        return False
    return not lacking_bytes(memory, options.max_model_len, options.kv_cache_dtype)
