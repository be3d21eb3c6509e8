"""Capacity plan: resources that a pair needs on given devices, and its predicted speed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import jax.numpy as jnp

from convert.files.safetensors_files import read_json
from convert.hub.checkpoint import find_config
from convert.hub.source import Source
from convert.published.directory import warn_of_unknown_fields
from convert.published.vision import abstract_vision, read_preprocessor
from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_tools.plan.data.gpus import GPUS, Gpu
from eagle3_tools.plan.from_config import draft_from_config, target_from_config
from eagle3_tools.plan.model.attention_work import StepRows
from eagle3_tools.plan.model.data_parallel import DataParallel, data_parallel
from eagle3_tools.plan.model.divided_context import PARTS, DecodeLoad, DividedContext
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.host_memory import HostMemory
from eagle3_tools.plan.model.kernels import BOUNDS, Bound
from eagle3_tools.plan.model.limits import Limit, limits
from eagle3_tools.plan.model.memory import (
    ITEMSIZE,
    Memory,
    kv_pools,
    lacking_bytes,
    plan_memory,
    too_big,
)
from eagle3_tools.plan.model.parallel import MOST_DEVICES, Parallelism
from eagle3_tools.plan.model.rounds import Load, LookupCost, Shapes
from eagle3_tools.plan.model.split import check_divides, indivisible
from eagle3_tools.plan.model.target_work import target_shape
from eagle3_tools.plan.options import PlanOptions

Model = TypeVar("Model", Target, Eagle3Draft, VisionModel | None)


@dataclass(frozen=True)
class AbstractPair:
    """Target, draft and vision tower (if the target takes images) as shapes without weights."""

    target: Target
    draft: Eagle3Draft | None
    vision: VisionModel | None = None


@dataclass(frozen=True)
class Fit:
    """Smallest number of these GPUs that hold a pair, and the KV tokens that then fit."""

    gpu: str
    devices: int
    tokens: int


@dataclass(frozen=True)
class CapacityPlan:
    """Result of a plan. memory: of each device. fits: for every kind of GPU. loads: every
    concurrency under both limits, datasheet first; own_loads: by the model of our kernels, if the
    second limit has published ones. divided: for MI355X, MI325X and the planned GPU, every decode
    context parallel size; empty if no context can be split. data_parallel: for the same GPUs, data
    parallel attention. decode_load: the load that these comparisons decode, at each concurrency.
    host: memory below the KV cache, for the same GPUs. lookups: cost of lookup at each concurrency,
    empty without it."""

    options: PlanOptions
    memory: Memory
    fits: tuple[Fit, ...]
    limits: tuple[Limit, ...]
    loads: tuple[Load, ...]
    own_loads: tuple[Load, ...]
    lookups: tuple[LookupCost, ...]
    divided: Mapping[str, tuple[DividedContext, ...]]
    data_parallel: Mapping[str, DataParallel]
    decode_load: DecodeLoad
    host: HostMemory


def read_pair(options: PlanOptions) -> AbstractPair:
    """Build the abstract models of the options' config.json files.

    Raises FileNotFoundError and ValueError, naming the file.
    """
    target = _read_model(options.model, partial(target_from_config, dtype=jnp.bfloat16))
    vision = None if options.language_model_only else _read_vision(options.model)
    if options.draft is None:
        return AbstractPair(target, None, vision)
    count = target.config.num_hidden_layers
    build = partial(draft_from_config, dtype=jnp.bfloat16, num_target_layers=count)
    draft = _read_model(options.draft, build)
    if draft.config.target_hidden_size != target.config.hidden_size:
        raise ValueError(
            f"{options.draft} drafts for a target of hidden size "
            f"{draft.config.target_hidden_size}, {options.model} has {target.config.hidden_size}"
        )
    return AbstractPair(target, draft, vision)


def make_plan(options: PlanOptions, pair: AbstractPair) -> CapacityPlan:
    """Make the plan. Raises ValueError for impossible lengths, if the devices cannot split the pair
    evenly, or if it does not fit."""
    _check_length(options, pair.target.config.max_position_embeddings)
    check_divides(options.parallel, pair.target, pair.draft)
    dtype, length = options.kv_cache_dtype, options.max_model_len
    memory, fits = _memory(options, pair, options.parallel), tuple(_fits(options, pair))
    if lacking_bytes(memory, length, dtype):
        what = too_big(memory, options.parallel.devices, length, dtype)
        raise ValueError(f"{what}; {_remedy(options, fits)}")
    divided, gpu = _divided(options, pair, memory), GPUS[options.gpu]
    return CapacityPlan(
        options,
        memory,
        fits,
        tuple(limits(memory, dtype)),
        tuple(load for bound in BOUNDS for load in _loads(options, pair, gpu, bound)),
        tuple(_loads(options, pair, gpu.ours, "tuned")) if gpu.published else (),
        tuple(_lookups(options, pair)),
        divided,
        _data_parallel(options, pair, divided),
        _decode_load(options, pair),
        _host_memory(options, pair),
    )


def _read_model(source: Source, build: Callable[[Mapping[str, Any]], Model]) -> Model:
    """Read a target or a draft, and warn of unknown fields."""
    model = _read(source, build)
    _read(source, partial(warn_of_unknown_fields, find_config(source)))
    return model


def _read(source: Source, build: Callable[[Mapping[str, Any]], Model]) -> Model:
    """Build a model from a config.json, given its path or its checkpoint."""
    file = find_config(source)
    try:
        return build(read_json(file))
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file}: {error}") from error


def _read_vision(source: Source) -> VisionModel | None:
    """Read the vision tower in bfloat16, as every published form of a checkpoint has it. Image
    limits come from the preprocessor_config.json next to its config.json, or are the released ones.
    """
    preprocessor = read_preprocessor(find_config(source).parent)

    def build(fields: Mapping[str, Any]) -> VisionModel | None:
        if not fields.get("vision_config"):
            return None
        return abstract_vision(VisionConfig.from_hf(fields, preprocessor), jnp.bfloat16)

    return _read(source, build)


def _check_length(options: PlanOptions, trained: int) -> None:
    """Check that the context holds prompt and answer and does not exceed the model's."""
    length, needed = options.max_model_len, options.isl + options.osl
    if needed > trained:
        raise ValueError(f"--isl + --osl are {needed}, more than the model's {trained} tokens")
    if length > trained:
        raise ValueError(f"--max-model-len is at most the model's {trained} tokens; got {length}")
    if length < needed:
        raise ValueError(f"--max-model-len must hold --isl + --osl, {needed} tokens; got {length}")


def engine_config(options: PlanOptions, pair: AbstractPair) -> EngineConfig:
    """Return the configuration of the planned engine, without pool sizes."""
    return EngineConfig(
        num_speculative_tokens=options.num_speculative_tokens if pair.draft else 0,
        max_model_len=options.max_model_len,
        max_num_seqs=options.max_num_seqs,
        page_size=options.page_size,
        decode_context_parallel_size=options.parallel.context_parts,
        num_lookup_tokens=options.num_lookup_tokens,
    )


def _memory(options: PlanOptions, pair: AbstractPair, parallel: Parallelism) -> Memory:
    gpu, utilization = GPUS[options.gpu], options.gpu_memory_utilization
    config = engine_config(options, pair)
    models = pair.target, pair.draft
    return plan_memory(*models, gpu, parallel, config, utilization, vision=pair.vision)


def _fits(options: PlanOptions, pair: AbstractPair) -> Iterator[Fit]:
    """Yield fits in ascending order, none for GPUs of which the largest number is too small."""
    waiting, dtype = list(GPUS.values()), options.kv_cache_dtype
    for devices in range(1, MOST_DEVICES + 1):
        parallel = options.parallel.over(devices)
        if not waiting or indivisible(parallel, pair.target, pair.draft):
            continue
        try:
            memory = _memory(options, pair, parallel)
        except ValueError:  # Values that share a scale would be separated.
            continue
        for gpu in tuple(waiting):
            there = memory.on(gpu, options.gpu_memory_utilization)
            if not lacking_bytes(there, options.max_model_len, dtype):
                waiting.remove(gpu)
                yield Fit(gpu.name, devices, there.tokens(dtype))


def _loads(options: PlanOptions, pair: AbstractPair, gpu: Gpu, bound: Bound) -> Iterator[Load]:
    shapes = replace(_shapes(options, pair, options.parallel), gpu=gpu)
    for batch in options.concurrency:
        rows = StepRows(batch, 1, options.context, ITEMSIZE[options.kv_cache_dtype])
        yield shapes.load(rows, bound, options.accept_lengths)


def _lookups(options: PlanOptions, pair: AbstractPair) -> Iterator[LookupCost]:
    shapes, drafts = _shapes(options, pair, options.parallel), options.num_speculative_tokens
    widths = drafts if pair.draft else 0, options.num_lookup_tokens
    for batch in options.concurrency if options.num_lookup_tokens else ():
        rows = StepRows(batch, 1, options.context, ITEMSIZE[options.kv_cache_dtype])
        yield shapes.lookup_cost(rows, *widths, options.max_model_len)


def _decode_load(options: PlanOptions, pair: AbstractPair) -> DecodeLoad:
    drafts = options.num_speculative_tokens if pair.draft else 0
    return DecodeLoad(
        options.isl,
        options.osl,
        pair.target.config.max_position_embeddings,
        options.kv_cache_dtype,
        drafts,
        options.accept_lengths[drafts],
    )


def _divided(
    options: PlanOptions, pair: AbstractPair, memory: Memory
) -> Mapping[str, tuple[DividedContext, ...]]:
    """Return plans of splitting contexts; `memory` is that of the planned kind of GPU."""
    found: dict[str, list[DividedContext]] = {}
    asked = options.parallel
    for parts in sorted({*PARTS, asked.context_parts}):
        if asked.devices % parts:
            continue
        parallel = replace(options.parallel, context_parts=parts)
        pools = kv_pools(pair.target, pair.draft, parallel)
        if parts > 1 and all(pool.context_parts == 1 for pool in pools):
            return {}
        there = replace(memory, pools=pools, page_tokens=options.page_size * parts)
        shapes = _shapes(options, pair, parallel)
        for name in dict.fromkeys((options.gpu, "MI355X", "MI325X")):
            gpu = GPUS[name]
            on_gpu = there.on(gpu, options.gpu_memory_utilization), replace(shapes, gpu=gpu)
            found.setdefault(name, []).append(DividedContext(parts, *on_gpu))
    return {gpu: tuple(each) for gpu, each in found.items() if len(each) > 1}


def _data_parallel(
    options: PlanOptions, pair: AbstractPair, divided: Mapping[str, tuple[DividedContext, ...]]
) -> Mapping[str, DataParallel]:
    devices = options.parallel.devices
    if pair.target.config.moe is None or pair.target.config.moe.n_routed_experts % devices:
        return {}
    return {
        gpu: data_parallel(pair.target, pair.draft, each[0].memory, GPUS[gpu], devices)
        for gpu, each in divided.items()
    }


def _host_memory(options: PlanOptions, pair: AbstractPair) -> HostMemory:
    shapes = _shapes(options, pair, options.parallel)
    gpus = dict.fromkeys((options.gpu, "MI355X", "MI325X"))
    config = engine_config(options, pair)
    return HostMemory(
        options.kv_offloading_bytes,
        kv_pools(pair.target, pair.draft, Parallelism()),
        {name: replace(shapes, gpu=GPUS[name]) for name in gpus},
        options.kv_cache_dtype,
        config.page_tokens,
        config.prefill_chunk,
        pair.target.config.max_position_embeddings,
    )


def _shapes(options: PlanOptions, pair: AbstractPair, parallel: Parallelism) -> Shapes:
    draft = draft_shape(pair.draft, parallel) if pair.draft else None
    return Shapes(target_shape(pair.target, parallel), draft, GPUS[options.gpu])


def _remedy(options: PlanOptions, fits: Sequence[Fit]) -> str:
    """Suggest more devices if that helps, else all other options."""
    for fit in fits:
        if fit.gpu == options.gpu:
            return f"--tensor-parallel-size {fit.devices} is the least that would do"
    return (
        "a checkpoint of fewer bits, a device with more memory, --kv-cache-dtype fp8 or a smaller "
        "--max-model-len would help"
    )
