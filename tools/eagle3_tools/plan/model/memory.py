"""Memory of a device, and the number of KV tokens that fit."""

import math
from dataclasses import dataclass, replace

import jax

from eagle3_jax.config.vision import VisionConfig
from eagle3_jax.engine.config import EngineConfig
from eagle3_jax.engine.images.layout import ImageLayout
from eagle3_jax.engine.programs.initial_state import StateLayout
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.layers.split_context import GATHERED_SLOTS
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.models.vision import VisionModel
from eagle3_jax.vision.packing import largest_bucket
from eagle3_tools.plan.data.gpus import GIB, Gpu
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.split import draft_parts, target_parts
from eagle3_tools.plan.model.weights import ModelBytes, model_bytes
from pallas_kernels.item_attention import PIECE

ITEMSIZE = {"bfloat16": 2, "fp8": 1}
"""Bytes of one number in a KV pool."""
BFLOAT16, FLOAT32 = 2, 4
LIBRARY_WORKSPACE = 76 * 2**20
"""Of hipBLASLt's products on gfx942, which XLA counts among temporaries; on gfx950 it is 64 MiB."""


@dataclass(frozen=True)
class Pool:
    """One KV pool on a device. elements: numbers of one position. layers: number of such pools.
    context_parts: devices that split the positions of a page. expanded: numbers of the keys and
    values that a prompt chunk computes from a position's latents, for the device's heads."""

    name: str
    elements: int
    layers: int
    context_parts: int = 1
    expanded: int = 0


@dataclass(frozen=True)
class Memory:
    """Bytes on each device. usable: available to the engine. state: everything except the pools.
    page_tokens: of a page, on all devices that split it. vision: tower and projector, whole on each
    device; encoding_bytes: temporaries of the largest image, outside of `usable`."""

    gpu: str
    total: int
    usable: int
    target: ModelBytes
    draft: ModelBytes | None
    state: int
    pools: tuple[Pool, ...]
    page_tokens: int
    vision: ModelBytes | None = None
    encoding_bytes: int = 0

    @property
    def weights(self) -> int:
        return self.pair_weights + (self.vision.device_nbytes if self.vision else 0)

    @property
    def pair_weights(self) -> int:
        """Bytes of target and draft, which a round reads."""
        return self.target.device_nbytes + (self.draft.device_nbytes if self.draft else 0)

    @property
    def for_pools(self) -> int:
        """Bytes left for KV; negative if weights and state alone do not fit."""
        return self.usable - self.weights - self.state

    @property
    def gathered_bytes(self) -> int:
        """Bytes of bfloat16 temporaries for the context that a prompt chunk attends to; 0 without
        latents. These are the gathered latents of GATHERED_SLOTS, if devices split contexts, and
        the keys and values computed from them."""
        latents = (pool for pool in self.pools if pool.expanded)
        each = (one.expanded + one.elements * (one.context_parts > 1) for one in latents)
        return BFLOAT16 * GATHERED_SLOTS * max(each, default=0)

    def page_bytes(self, kv_cache_dtype: str) -> int:
        """Return the bytes of one page's KV in all pools."""
        elements = sum(
            pool.elements * pool.layers * (self.page_tokens // pool.context_parts)
            for pool in self.pools
        )
        return elements * ITEMSIZE[kv_cache_dtype]

    def token_bytes(self, kv_cache_dtype: str) -> float:
        """Return the bytes of one token's KV in all pools, as the mean of a page."""
        return self.page_bytes(kv_cache_dtype) / self.page_tokens

    def pages(self, kv_cache_dtype: str) -> int:
        """Return the number of pages that fit, including the scratch page."""
        return max(0, self.for_pools // self.page_bytes(kv_cache_dtype))

    def tokens(self, kv_cache_dtype: str) -> int:
        """Return the number of KV tokens that fit."""
        return max(0, self.pages(kv_cache_dtype) - 1) * self.page_tokens

    def on(self, gpu: Gpu, utilization: float) -> "Memory":
        """Return the same parts on another kind of GPU."""
        usable = int(gpu.memory * utilization)
        return replace(self, gpu=gpu.name, total=gpu.memory, usable=usable)

    def sequences(self, length: int, kv_cache_dtype: str) -> int:
        """Return the number of sequences of `length` tokens that fit."""
        each = math.ceil(length / self.page_tokens)
        return max(0, self.pages(kv_cache_dtype) - 1) // each


def plan_memory(
    target: Target,
    draft: Eagle3Draft | None,
    gpu: Gpu,
    parallel: Parallelism,
    config: EngineConfig,
    utilization: float,
    *,
    vision: VisionModel | None = None,
) -> Memory:
    """Compute the memory of an abstract pair. Raises ValueError if it does not split evenly."""
    return Memory(
        gpu.name,
        gpu.memory,
        int(gpu.memory * utilization),
        model_bytes(target, target_parts(parallel)),
        draft and model_bytes(draft, draft_parts(parallel)),
        _state_bytes(target, draft, config, vision),
        kv_pools(target, draft, parallel),
        config.page_size * parallel.context_parts,
        vision and model_bytes(vision),
        encoding_bytes(vision.config) if vision else 0,
    )


def encoding_bytes(config: VisionConfig, patches: int | None = None) -> int:
    """Return the temporaries of encoding `patches` patches, by default of the largest image.

    They are largest when a block's queries, keys and values exist twice, as the product's result
    and by heads, or when the MLP's intermediate rows exist beside the library's workspace. The
    states and the cosines and sines always exist.
    """
    rows = largest_bucket(config) if patches is None else patches
    columns = -(-config.head_dim // PIECE) * PIECE
    states = config.hidden_size
    by_heads = states + 3 * states + 3 * config.num_attention_heads * columns
    in_mlp = 2 * states + config.intermediate_size
    peak = rows * BFLOAT16 * by_heads, rows * BFLOAT16 * in_mlp + LIBRARY_WORKSPACE
    return max(peak) + rows * FLOAT32 * config.head_dim


def lacking_bytes(memory: Memory, length: int, kv_cache_dtype: str) -> int:
    """Return the bytes missing for one sequence of this length; 0 if it fits."""
    return max(0, _sequence_bytes(memory, length, kv_cache_dtype) - memory.for_pools)


def too_big(memory: Memory, devices: int, length: int, kv_cache_dtype: str) -> str:
    """Return an error message for a pair that does not fit."""
    lacking = lacking_bytes(memory, length, kv_cache_dtype)
    pools = _sequence_bytes(memory, length, kv_cache_dtype)
    return (
        f"{devices} x {memory.gpu} are too small: on each, weights take "
        f"{memory.weights / GIB:.1f} GiB, slots {memory.state / GIB:.1f} and KV of one sequence of "
        f"{length} tokens {pools / GIB:.1f}; that is {lacking / GIB:.1f} more than the "
        f"{memory.usable / GIB:.1f} GiB that may be used"
    )


def _sequence_bytes(memory: Memory, length: int, kv_cache_dtype: str) -> int:
    """Return the bytes of the pools for one sequence and the scratch page."""
    pages = math.ceil(length / memory.page_tokens) + 1
    return pages * memory.page_bytes(kv_cache_dtype)


def _state_bytes(
    target: Target, draft: Eagle3Draft | None, config: EngineConfig, vision: VisionModel | None
) -> int:
    """Return the bytes of slots, their options and cached image features, as the engine allocates
    them; every device holds all of them."""
    alone = replace(config, num_pages=None, decode_context_parallel_size=1)
    num_aux = draft.config.num_aux if draft else 0
    rows = ImageLayout.of(vision, target, draft, config).rows if vision else 0
    state = StateLayout(target, draft, alone, num_aux, image_rows=rows).shapes()
    leaves = jax.tree.leaves(replace(state, target_pools=(), draft_pools=()))
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)


def kv_pools(target: Target, draft: Eagle3Draft | None, parallel: Parallelism) -> tuple[Pool, ...]:
    """Return one kind of pool each for target and draft."""
    parts = parallel.context_parts
    drafts = (_pool("draft", draft, parallel.draft_devices, parts),) if draft else ()
    return _pool("target", target, parallel.devices, parts), *drafts


def _pool(name: str, model: Target | Eagle3Draft, devices: int, context_parts: int) -> Pool:
    """Describe a model's pool on a device. Latents of a position are whole on the device that holds
    it. Keys and values are split by heads, at least one for each device, then by positions. A model
    that is whole on every device has all positions there."""
    rows = model.pool_rows
    latent = len(rows[0]) == 1
    kind, heads = ("latents", 1) if latent else ("keys, values", rows[0][0])
    parts = context_parts if devices > heads else 1
    size = math.prod(rows[0]) // min(devices, heads)
    return Pool(f"{name} {kind}", size, len(rows), parts, _expanded(model) // devices)


def _expanded(model: Target | Eagle3Draft) -> int:
    """Return the numbers of a position's values and unrotated keys of all heads."""
    first = model.layers[0] if isinstance(model, Target) else model.midlayer
    attention = first.self_attn
    if not isinstance(attention, MLAttention):
        return 0
    config = attention.config
    return config.num_attention_heads * (config.qk_nope_head_dim + config.v_head_dim)
