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
from eagle3_tools.plan.model.divided_context import DecodeLoad, DividedContext
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.kernels import Exchange, Work
from eagle3_tools.plan.model.memory import Memory, kv_pools
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.rounds import Shapes
from eagle3_tools.plan.model.split import target_parts
from eagle3_tools.plan.model.target_work import TargetShape, launches_work, target_shape
from eagle3_tools.plan.model.weights import ModelBytes, model_bytes

DIVIDED = "routed experts"
"""The part of the target that is split over the devices."""

REPORT_BYTES = 32
"""Approximate bytes of a sequence's report to the host, gathered from all devices."""


@dataclass(frozen=True)
class DataParallel(DividedContext):
    """A pair with data parallel attention over the devices of its shapes. memory: of each.

    A context has one part, on the device that has its sequence.
    """

    @property
    def devices(self) -> int:
        """Number of devices, each with its own sequences."""
        return self.shapes.target.parallel.devices

    def tokens(self, kv_cache_dtype: str) -> int:
        """Return the KV tokens on all devices."""
        return self.devices * super().tokens(kv_cache_dtype)

    def sequences(self, load: DecodeLoad) -> int:
        """Return the number of the load's sequences that fit; each is on one device."""
        return self.devices * super().sequences(load)

    def target_work(self, rows: StepRows) -> Iterator[Work]:
        """Yield the work of a step on the busiest device. rows: of all devices."""
        return data_parallel_work(self.shapes.target, rows)

    def own(self, rows: StepRows) -> StepRows:
        return own_rows(rows, self.devices)


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
    return DataParallel(1, own, Shapes(_target_shape(target, by_experts), drafts, gpu))


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
    own = own_rows(rows, devices)
    yield from launches_work(shape, own, rows)
    if devices == 1:
        return
    routed = sum(times for layer, times in shape.layers if layer.experts is not None)
    nbytes = ACTIVATION_BYTES * own.count * shape.hidden
    yield Exchange(nbytes, devices, routed, "rows to experts")
    yield Exchange(nbytes, devices, routed, "rows back")
    yield Exchange(REPORT_BYTES * own.batch, devices, 1, "reports")


def own_rows(rows: StepRows, devices: int) -> StepRows:
    """Return the rows of the busiest of these devices."""
    return replace(rows, batch=math.ceil(rows.batch / devices))
