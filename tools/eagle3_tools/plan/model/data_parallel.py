"""Data parallel attention: each device has its own sequences, and the experts are split over all.

This is `--data-parallel-size`: everything except routed experts is whole on each device, which
processes only its own sequences; so no latents are stored twice. Each routed expert is whole on one
device: in every layer all devices get all rows, and return their experts' results.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_tools.plan.data.gpus import Gpu
from eagle3_tools.plan.model.attention_work import ACTIVATION_BYTES, StepRows
from eagle3_tools.plan.model.divided_context import BOUND, DecodeLoad, DividedRound
from eagle3_tools.plan.model.draft_work import draft_shape, draft_work
from eagle3_tools.plan.model.kernels import Bound, Exchange, Kernel, Work, seconds_of_parts
from eagle3_tools.plan.model.memory import ITEMSIZE, Memory, kv_pools
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.split import target_parts
from eagle3_tools.plan.model.target_work import (
    SMALL_KERNELS,
    TargetShape,
    experts_work,
    product_work,
    target_shape,
)
from eagle3_tools.plan.model.weights import ModelBytes, model_bytes

DIVIDED = "routed experts"
"""The part of the target that is split over the devices."""

REPORT_BYTES = 32
"""Approximate bytes of a sequence's report to the host, gathered from all devices."""


@dataclass(frozen=True)
class DataParallel:
    """A pair with data parallel attention over the devices of its shapes. memory: of each."""

    memory: Memory
    shapes: Shapes

    @property
    def devices(self) -> int:
        """Number of devices, each with its own sequences."""
        return self.shapes.target.parallel.devices

    def tokens(self, kv_cache_dtype: str) -> int:
        """Return the KV tokens on all devices."""
        return self.devices * self.memory.tokens(kv_cache_dtype)

    def sequences(self, load: DecodeLoad) -> int:
        """Return the number of the load's sequences that fit; each is on one device."""
        return self.devices * self.memory.sequences(load.length, load.kv_cache_dtype)

    def round(self, load: DecodeLoad, concurrency: int, bound: Bound = BOUND) -> DividedRound:
        """Return a round of the load, spread evenly; without sequences it takes no time."""
        batch = min(concurrency, self.sequences(load))
        if not batch:
            return DividedRound(concurrency, 0, {}, {}, 0.0)
        shapes, itemsize = self.shapes, ITEMSIZE[load.kv_cache_dtype]
        rows = StepRows(batch, load.drafts + 1, load.context, itemsize)
        own = replace(rows, batch=math.ceil(batch / self.devices))
        target_s = seconds_of_parts(data_parallel_work(shapes.target, rows), shapes.gpu, bound)
        drafted = draft_work(shapes.draft, load.drafts, own) if shapes.draft else ()
        draft_s = seconds_of_parts(drafted, shapes.gpu, bound)
        total = sum(target_s.values()) + sum(draft_s.values())
        return DividedRound(
            concurrency, batch, target_s, draft_s, load.accept_length * batch / total / self.devices
        )


def data_parallel(
    target: Target, draft: Eagle3Draft | None, memory: Memory, gpu: Gpu, devices: int
) -> DataParallel:
    """Build the plan. memory: of the pair by tensor parallelism, contexts not split."""
    alone, by_experts = Parallelism(), Parallelism(devices, expert_parallel=True)
    own = replace(
        memory,
        target=_target_bytes(target, by_experts),
        draft=model_bytes(draft) if draft else None,
        pools=kv_pools(target, draft, alone),
    )
    drafts = draft_shape(draft, alone) if draft else None
    return DataParallel(own, Shapes(_target_shape(target, by_experts), drafts, gpu))


def _target_bytes(target: Target, by_experts: Parallelism) -> ModelBytes:
    whole, divided = model_bytes(target), model_bytes(target, target_parts(by_experts))
    parts: Mapping[str, int] = divided.by_part
    by_part = {
        part: parts[part] if part == DIVIDED else nbytes for part, nbytes in whole.by_part.items()
    }
    return replace(whole, device_nbytes=sum(by_part.values()), by_part=by_part)


def _target_shape(target: Target, by_experts: Parallelism) -> TargetShape:
    """Return the shape with experts split over the devices and everything else whole."""
    whole, divided = target_shape(target, Parallelism()), target_shape(target, by_experts)
    layers = tuple(
        (replace(layer, experts=other.experts), times)
        for (layer, times), (other, _) in zip(whole.layers, divided.layers, strict=True)
    )
    return replace(whole, layers=layers, parallel=by_experts)


def data_parallel_work(shape: TargetShape, rows: StepRows) -> Iterator[Work]:
    """Yield the launches and exchanges of a step on the busiest device. rows: of all devices."""
    devices = shape.parallel.devices
    own = replace(rows, batch=math.ceil(rows.batch / devices))
    layers = sum(times for _, times in shape.layers)
    for layer, times in shape.layers:
        for product in layer.attention:
            yield product_work("attention weights", product, own.count, times)
        for product in layer.dense:
            yield product_work("dense weights", product, own.count, times)
        if layer.experts is not None:
            yield experts_work(shape, layer.experts, rows.count, times)
            yield from _moves(shape, own.count, times)
    yield from shape.core.work("attention", own, layers)
    passed = ACTIVATION_BYTES * own.count * shape.hidden
    yield Kernel("small kernels", "small", passed, times=SMALL_KERNELS * layers)
    yield product_work("head", shape.head, own.count, 1)
    if devices > 1:
        yield Exchange(REPORT_BYTES * own.batch, devices, 1, "reports")


def _moves(shape: TargetShape, rows: int, times: int) -> Iterator[Work]:
    """Yield the exchange of a device's rows with each other device, and of the experts' results."""
    devices = shape.parallel.devices
    if devices == 1:
        return
    nbytes = ACTIVATION_BYTES * rows * shape.hidden
    yield Exchange(nbytes, devices, times, "rows to experts")
    yield Exchange(nbytes, devices, times, "rows back")
