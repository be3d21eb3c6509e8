"""Work of a device in a target step: decoding, or verifying several rows a sequence."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import NormalDist

from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.target import DecoderLayer, Target
from eagle3_tools.plan.model.attention_work import (
    ACTIVATION_BYTES,
    AttentionCore,
    StepRows,
    attention_products,
)
from eagle3_tools.plan.model.kernels import AllReduce, Kernel, Work
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.products import Device, Product
from eagle3_tools.plan.model.split import target_parts

FLOAT32_BYTES = 4
SMALL_KERNELS = 6
"""Other launches of a layer: norms, rotation, cache, router, quantisation. A guess."""


@dataclass(frozen=True)
class LayerShape:
    """One layer. experts: routed ones; dense: all other products of the feed-forward half."""

    attention: tuple[Product, ...]
    dense: tuple[Product, ...]
    experts: Product | None


@dataclass(frozen=True)
class TargetShape:
    """The target on one device. layers: each kind of layer with its count."""

    layers: tuple[tuple[LayerShape, int], ...]
    core: AttentionCore
    head: Product
    hidden: int
    num_experts: int
    experts_per_token: int
    parallel: Parallelism
    norms_heads: bool = False
    """True if norms of queries and keys span all heads: devices sum two numbers a row and layer."""


def target_shape(target: Target, parallel: Parallelism) -> TargetShape:
    device, config = Device(target_parts(parallel)), target.config
    attention = target.layers[0].self_attn
    return TargetShape(
        tuple(Counter(_layer_shape(device, layer) for layer in target.layers).items()),
        AttentionCore.of(
            attention, config.num_attention_heads, parallel.devices, parallel.context_parts
        ),
        device.product(target.lm_head.kernel),
        config.hidden_size,
        config.moe.n_routed_experts if config.moe else 0,
        config.moe.num_experts_per_tok if config.moe else 0,
        parallel,
        isinstance(attention, GQAttention) and attention.has_qk_norm,
    )


def _layer_shape(device: Device, layer: DecoderLayer) -> LayerShape:
    attention, mlp = attention_products(device, layer.self_attn), layer.mlp
    if not isinstance(mlp, MoE):
        return LayerShape(attention, (device.block(mlp),), None)
    shared = [] if mlp.shared_experts is None else [device.block(mlp.shared_experts)]
    dense = (device.product(mlp.gate.kernel), *shared)
    return LayerShape(attention, dense, device.block(mlp.experts))


def target_work(shape: TargetShape, rows: StepRows) -> Iterator[Work]:
    """Yield all launches of a step and its sums over devices."""
    yield from launches_work(shape, rows, rows)
    layers = sum(times for _, times in shape.layers)
    passed = ACTIVATION_BYTES * rows.count * shape.hidden
    yield AllReduce(passed, shape.parallel.devices, 2 * layers + 1)
    if shape.norms_heads:
        yield AllReduce(2 * FLOAT32_BYTES * rows.count, shape.parallel.devices, layers)


def launches_work(shape: TargetShape, own: StepRows, rows: StepRows) -> Iterator[Work]:
    """Yield the launches of a step. own: rows of the device; rows: those of its experts."""
    layers = sum(times for _, times in shape.layers)
    for layer, times in shape.layers:
        for product in layer.attention:
            yield product_work("attention weights", product, own.count, times)
        for product in layer.dense:
            yield product_work("dense weights", product, own.count, times)
        if layer.experts is not None:
            yield experts_work(shape, layer.experts, rows.count, times)
    yield from shape.core.work("attention", own, layers)
    passed = ACTIVATION_BYTES * own.count * shape.hidden
    yield Kernel("small kernels", "small", passed, times=SMALL_KERNELS * layers)
    yield product_work("head", shape.head, own.count, 1)


def product_work(part: str, product: Product, rows: int, times: int) -> Kernel:
    nbytes = product.nbytes + ACTIVATION_BYTES * rows * product.width
    flop = 2 * rows * product.elements
    return Kernel(part, "gemm", nbytes, flop, product.activations, times)


def experts_work(shape: TargetShape, experts: Product, rows: int, times: int) -> Kernel:
    """Return the routed experts' work, which reads the weights of the chosen experts."""
    read = read_share(shape.num_experts, shape.experts_per_token, rows, shape.parallel)
    nbytes = read * experts.nbytes + ACTIVATION_BYTES * rows * experts.width
    flop = 2 * rows * experts.elements * shape.experts_per_token / shape.num_experts
    kind = "experts_int4" if experts.weights.startswith("int4") else "experts"
    return Kernel("experts", kind, nbytes, flop, experts.activations, times)


def distinct_experts(num_experts: int, per_token: int, rows: int) -> float:
    """Return the expected number of experts that `rows` tokens choose at random, evenly."""
    return num_experts * (1 - (1 - per_token / num_experts) ** rows)


def read_share(num_experts: int, per_token: int, rows: int, parallel: Parallelism) -> float:
    """Return the fraction of the experts' weights read on the busiest device.

    Each expert is chosen with probability p. Without expert parallelism, devices are alike. With
    it, a device has m experts, of which it reads a binomial number; the largest of n such numbers
    is about Blom's score (1958) above their mean.
    """
    p = distinct_experts(num_experts, per_token, rows) / num_experts
    n = parallel.devices
    if not parallel.expert_parallel or n == 1:
        return p
    m = num_experts / n
    score = NormalDist().inv_cdf((n - 0.375) / (n + 0.25))
    return min(1.0, p + score * (p * (1 - p) / m) ** 0.5)
