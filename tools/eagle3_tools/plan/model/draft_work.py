"""Work of a device to draft the tokens of one round."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_tools.plan.model.attention_work import (
    ACTIVATION_BYTES,
    AttentionCore,
    StepRows,
    attention_products,
)
from eagle3_tools.plan.model.kernels import AllReduce, Kernel, Work
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.products import Device, Product
from eagle3_tools.plan.model.split import draft_parts
from eagle3_tools.plan.model.target_work import product_work

SMALL_KERNELS = 5
"""Launches of one pass besides products and attention: norms, rotation, cache. A guess."""
CHOICE_BYTES = 8
"""Bytes that devices exchange for one drafted token: a score and an id."""


@dataclass(frozen=True)
class DraftShape:
    """The draft on one device."""

    fc: Product
    layer: tuple[Product, ...]
    attention: AttentionCore
    head: Product
    hidden: int
    devices: int


def draft_shape(draft: Eagle3Draft, parallel: Parallelism) -> DraftShape:
    devices = parallel.draft_devices
    device, layer = Device(draft_parts(parallel)), draft.midlayer
    attention, mlp = layer.self_attn, layer.mlp
    gated = device.product(mlp.gate_proj.kernel, mlp.up_proj.kernel)
    return DraftShape(
        device.product(draft.fc.kernel),
        (*attention_products(device, attention), gated, device.product(mlp.down_proj.kernel)),
        AttentionCore.of(
            attention, draft.config.num_attention_heads, devices, parallel.context_parts
        ),
        device.product(draft.lm_head.kernel),
        draft.config.hidden_size,
        devices,
    )


def draft_work(shape: DraftShape, drafts: int, rows: StepRows) -> Iterator[Work]:
    """Yield a first pass over the rows verified last (rows.q_len of each sequence), then steps.

    The head runs on one row of each sequence in every pass. Without drafts there is still the first
    pass, which keeps the draft's KV complete.
    """
    yield product_work("fc", shape.fc, rows.count, 1)
    yield from _pass(shape, rows, 1)
    if drafts > 1:
        yield from _pass(shape, replace(rows, q_len=1), drafts - 1)
    if drafts:
        yield product_work("head", shape.head, rows.batch, drafts)
        yield AllReduce(CHOICE_BYTES * rows.batch, shape.devices, drafts)


def _pass(shape: DraftShape, rows: StepRows, times: int) -> Iterator[Work]:
    for product in shape.layer:
        yield product_work("layer", product, rows.count, times)
    yield from shape.attention.work("attention", rows, times)
    passed = ACTIVATION_BYTES * rows.count * shape.hidden
    yield Kernel("small kernels", "small", passed, times=SMALL_KERNELS * times)
    yield AllReduce(passed, shape.devices, 3 * times)
