"""Bytes and seconds of a training step, device by device: by arithmetic, nothing was measured."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from flax import nnx

from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.training.lesson import BLOCK
from eagle3_jax.training.unroll import QUERY_BLOCK
from serve.plan.data.gpus import GPUS
from serve.plan.model.attention_work import StepRows
from serve.plan.model.draft_work import draft_shape
from serve.plan.model.kernels import AllReduce, Bound, Kernel, Work, seconds
from serve.plan.model.memory import ITEMSIZE, Pool, kv_pools
from serve.plan.model.split import check_divides, draft_parts, target_parts
from serve.plan.model.target_work import product_work, target_shape
from serve.plan.model.target_work import target_work as one_pass
from serve.plan.model.weights import model_bytes
from serve.plan.planner import AbstractPair
from serve.plan.training.options import TrainingOptions

FLOAT, HALF = 4, 2
PASSES = 4
"""Forward, again for backward, and backward, which is twice a forward."""
TRAINED_BYTES = 4 * FLOAT + HALF
"""Of a parameter: itself, two moments, a gradient, and what computes."""
TORCHSPEC_HOURS = 1500
"""H200 hours of 6 B tokens, as TorchSpec's authors report."""


@dataclass(frozen=True)
class TrainingPlan:
    """Of one replica's devices."""

    options: TrainingOptions
    pair: AbstractPair

    def __post_init__(self) -> None:
        check_divides(self.options.pair.parallel, self.pair.target, self.pair.draft)
        if any(isinstance(part, QuantizedKernel) for _, part in nnx.iter_graph(self._draft)):
            raise ValueError(
                f"{self.options.pair.draft}: quantised weights can't be trained; name the config "
                "of a draft in bfloat16"
            )

    @property
    def tokens(self) -> int:
        """Of a step."""
        return self.options.rows * self.options.pair.max_model_len

    @cached_property
    def memory(self) -> dict[str, int]:
        """Bytes on each device, by what they are."""
        target, draft, parallel = self.pair.target, self._draft, self.options.pair.parallel
        config, length = draft.config, self.options.pair.max_model_len
        weights = model_bytes(draft, draft_parts(parallel))
        embedding = weights.by_part.get("embedding", 0)
        numbers = (weights.device_nbytes - embedding) // HALF
        whole = config.hidden_size * (config.vocab_size + target.config.vocab_size)
        devices = parallel.draft_devices
        ids = config.draft_vocab_size // devices + target.config.vocab_size
        row = config.num_aux * config.target_hidden_size + target.config.hidden_size
        # A step leaves its state, keys and values; the devices share heads, not states.
        core = draft_shape(draft, parallel).attention
        step = config.hidden_size + core.heads * core.multiplied
        heads = config.num_attention_heads // devices
        return {
            "target": model_bytes(target, target_parts(parallel)).device_nbytes,
            "target's embedding and head, whole": whole * HALF,
            "KV of a row": sum(pool.elements * pool.layers for pool in self._pools) * length * HALF,
            "features": self.tokens * row * HALF,
            "draft, moments, gradient": numbers * TRAINED_BYTES,
            "states of the chain": self.options.unroll * self.tokens * step * HALF,
            "logits of a block": 3 * self.options.rows * BLOCK * ids * FLOAT,
            "scores of a block": 3 * self.options.rows * QUERY_BLOCK * heads * length * FLOAT,
        }

    def fits(self) -> bool:
        """Within the share of the memory that serving would take too."""
        options = self.options.pair
        share = options.gpu_memory_utilization * GPUS[options.gpu].memory
        return sum(self.memory.values()) <= share

    def seconds(self, bound: Bound) -> dict[str, float]:
        """Of a step, by who works."""
        gpu = GPUS[self.options.pair.gpu]
        return {
            "target": seconds(self._target_work(), gpu, bound),
            "draft": seconds(self._draft_work(), gpu, bound),
        }

    def tokens_per_second(self, bound: Bound) -> float:
        """Of one replica."""
        return self.tokens / sum(self.seconds(bound).values())

    def hours(self, gpus: int, bound: Bound) -> float:
        """Of all data on so many GPUs; the exchange of gradients between replicas not counted."""
        replicas = gpus // self.options.pair.parallel.devices
        return self.options.tokens / (replicas * self.tokens_per_second(bound)) / 3600

    @property
    def _draft(self) -> Eagle3Draft:
        assert self.pair.draft is not None
        return self.pair.draft

    @property
    def _pools(self) -> tuple[Pool, ...]:
        return kv_pools(self.pair.target, None, self.options.pair.parallel)

    def _target_work(self) -> Iterator[Work]:
        """Chunk after chunk over half a row's context, which is their mean."""
        shape = target_shape(self.pair.target, self.options.pair.parallel)
        chunk = min(self.options.chunk, self.options.pair.max_model_len)
        rows = StepRows(1, chunk, self.options.pair.max_model_len / 2, ITEMSIZE["bfloat16"])
        for _ in range(math.ceil(self.tokens / chunk)):
            yield from one_pass(shape, rows)

    def _draft_work(self) -> Iterator[Work]:
        shape = draft_shape(self._draft, self.options.pair.parallel)
        steps, length = self.options.unroll, self.options.pair.max_model_len
        times, hidden = PASSES * steps, self._draft.config.hidden_size
        yield product_work("fc", shape.fc, self.tokens, PASSES)
        for product in shape.layer:
            yield product_work("layer", product, self.tokens, times)
        scores = 2 * self.tokens * shape.attention.heads * length * shape.attention.multiplied
        written = FLOAT * self.tokens * shape.attention.heads * length
        # Every score is made, the masked half too, and written once and read once.
        yield Kernel("attention", "attention", 2 * written, scores, times=times)
        yield product_work("head", shape.head, self.tokens, times)
        vocab = self.pair.target.config.vocab_size
        teacher = 2 * self.tokens * hidden * vocab
        yield Kernel("teacher's head", "gemm", HALF * hidden * vocab, teacher, times=2)
        yield AllReduce(HALF * self.tokens * hidden, shape.devices, 2 * times)
