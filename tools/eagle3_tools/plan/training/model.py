"""Bytes and seconds of a training step on each device: arithmetic, nothing was measured."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from flax import nnx

from eagle3_jax.layers.quantized import QuantizedKernel
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.training.distillation import GPU_BLOCK
from eagle3_jax.training.unroll import QUERY_BLOCK
from eagle3_tools.plan.data.gpus import GPUS
from eagle3_tools.plan.model.attention_work import StepRows
from eagle3_tools.plan.model.draft_work import draft_shape
from eagle3_tools.plan.model.kernels import AllReduce, Bound, Kernel, Work, seconds
from eagle3_tools.plan.model.memory import ITEMSIZE, kv_pools
from eagle3_tools.plan.model.parallel import Parallelism
from eagle3_tools.plan.model.split import check_divides, draft_parts, target_parts
from eagle3_tools.plan.model.target_work import product_work, target_shape
from eagle3_tools.plan.model.target_work import target_work as one_pass
from eagle3_tools.plan.model.weights import ModelBytes, model_bytes
from eagle3_tools.plan.planner import AbstractPair
from eagle3_tools.plan.training.options import TrainingOptions

Part = Literal["features", "update"]
PARTS: tuple[Part, ...] = ("features", "update")
"""Programs of a step: the target's pass, and the draft's gradient with the update."""
FLOAT, HALF = 4, 2
PASSES = 4
"""Forward, recomputation for backward, and backward, which costs two forwards."""
HEAD_PASSES = 3
"""The head's gradient is computed with the loss, so nothing is recomputed."""
MASTER_BYTES, UPDATE_BYTES = 3 * FLOAT, FLOAT + HALF
"""Bytes of a parameter: the parameter and two moments; during an update, its gradient and the copy
in the run dtype."""
TORCHSPEC_HOURS = 1500
"""H200 hours for 6 B tokens, as TorchSpec's authors report."""


@dataclass(frozen=True)
class TrainingPlan:
    """Plan for the devices of one replica."""

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
        return self.options.rows * self.options.pair.max_model_len

    @cached_property
    def resident(self) -> dict[str, int]:
        """Bytes on each device that persist between programs."""
        config = self.pair.target.config
        return {
            "target": self._target.device_nbytes,
            "draft, moments": self._trained * MASTER_BYTES,
            # With --init-from and a draft that has its own embedding, as published drafts do:
            # whole, and not trained.
            "an embedding of the draft's own": config.vocab_size * config.hidden_size * FLOAT,
            "features": self.tokens * self._feature_row * HALF,
        }

    def arguments(self, part: Part) -> dict[str, int]:
        """Return the bytes of a program's arguments on each device."""
        kept, parts = self.resident, self._target.by_part
        if part == "features":
            return {"target but for its head": kept["target"] - parts["head"]}
        ends = {"target's embedding and head": parts["embedding"] + parts["head"]}
        return ends | {name: kept[name] for name in ("draft, moments", "features")}

    def temporaries(self, part: Part) -> dict[str, int]:
        """Return the bytes of a program's temporaries on each device."""
        if part == "features":
            return self._temporaries_of_features()
        draft, rows, devices = self._draft, self.options.rows, self._parallel.draft_devices
        config, length = draft.config, self.options.pair.max_model_len
        # The chain's steps share one product with the head; the sum of its gradient is float32.
        drafted, vocab = config.draft_vocab_size, self.pair.target.config.vocab_size
        logits = (self.options.unroll * drafted + vocab) // devices
        # A step keeps keys, values and its state. The next step begins from the state one row
        # later, and its gradient waits for backward; devices split heads, not states.
        core = draft_shape(draft, self._parallel).attention
        step = 3 * config.hidden_size + core.heads * core.multiplied
        # The embeddings, the chain's initial states, and a layer's input, two states wide, with its
        # gradient.
        entered = (2 + 2 * 2) * config.hidden_size
        heads = config.num_attention_heads // devices
        return {
            "gradient, and what computes": self._trained * UPDATE_BYTES,
            "states of the chain": self.options.unroll * self.tokens * step * HALF,
            "a layer's input": self.tokens * entered * HALF,
            "logits of a block": 3 * rows * GPU_BLOCK * logits * FLOAT,
            "the head's gradient": drafted * config.hidden_size // devices * FLOAT,
            "scores of a block": 3 * rows * QUERY_BLOCK * heads * length * FLOAT,
        }

    @property
    def most(self) -> int:
        """Bytes on each device while the larger program runs."""
        return sum(self.resident.values()) + max(
            sum(self.temporaries(part).values()) for part in PARTS
        )

    def fits(self) -> bool:
        """Return whether the programs fit within the fraction of memory that serving would use."""
        options = self.options.pair
        share = options.gpu_memory_utilization * GPUS[options.gpu].memory
        return self.most <= share

    def seconds(self, bound: Bound) -> dict[str, float]:
        gpu = GPUS[self.options.pair.gpu]
        return {
            "target": seconds(self._target_work(), gpu, bound),
            "draft": seconds(self._draft_work(), gpu, bound),
        }

    def tokens_per_second(self, bound: Bound) -> float:
        return self.tokens / sum(self.seconds(bound).values())

    def hours(self, gpus: int, bound: Bound) -> float:
        """Return the hours for all data on `gpus` GPUs, without the replicas' gradient exchange."""
        replicas = gpus // self.options.pair.parallel.devices
        return self.options.tokens / (replicas * self.tokens_per_second(bound)) / 3600

    @property
    def _draft(self) -> Eagle3Draft:
        assert self.pair.draft is not None
        return self.pair.draft

    @property
    def _parallel(self) -> Parallelism:
        return self.options.pair.parallel

    @cached_property
    def _target(self) -> ModelBytes:
        return model_bytes(self.pair.target, target_parts(self._parallel))

    @cached_property
    def _trained(self) -> int:
        """Parameters on a device, without the embedding, which is never trained."""
        weights = model_bytes(self._draft, draft_parts(self._parallel))
        return (weights.device_nbytes - weights.by_part.get("embedding", 0)) // HALF

    @property
    def _feature_row(self) -> int:
        """Numbers of a token's features: the aux layers' inputs and the last layer's output."""
        config = self._draft.config
        return config.num_aux * config.target_hidden_size + self.pair.target.config.hidden_size

    def _temporaries_of_features(self) -> dict[str, int]:
        """Return temporaries for one row at a time, with room for a chunk after its end."""
        config, length = self.pair.target.config, self.options.pair.max_model_len
        pools = kv_pools(self.pair.target, None, self._parallel)
        numbers = sum(pool.elements * pool.layers for pool in pools)
        chosen = 1 + (config.moe.num_experts_per_tok if config.moe else 0)
        states = (1 + chosen) * config.hidden_size  # Layer and experts of each token.
        return {
            "KV of a row": numbers * length * HALF,
            "features of a row": (length + self.options.chunk) * self._feature_row * HALF,
            "a chunk's states, in and out": 2 * self.options.chunk * states * HALF,
        }

    def _target_work(self) -> Iterator[Work]:
        """Yield chunks over half a row's context, which is their mean."""
        shape = target_shape(self.pair.target, self._parallel)
        chunk = min(self.options.chunk, self.options.pair.max_model_len)
        rows = StepRows(1, chunk, self.options.pair.max_model_len / 2, ITEMSIZE["bfloat16"])
        for _ in range(math.ceil(self.tokens / chunk)):
            yield from one_pass(shape, rows)

    def _draft_work(self) -> Iterator[Work]:
        shape = draft_shape(self._draft, self._parallel)
        steps, length = self.options.unroll, self.options.pair.max_model_len
        times, hidden = PASSES * steps, self._draft.config.hidden_size
        yield product_work("fc", shape.fc, self.tokens, PASSES)
        for product in shape.layer:
            yield product_work("layer", product, self.tokens, times)
        scores = 2 * self.tokens * shape.attention.heads * length * shape.attention.multiplied
        written = FLOAT * self.tokens * shape.attention.heads * length
        # Every score is computed, including the masked half, and written and read once.
        yield Kernel("attention", "attention", 2 * written, scores, times=times)
        yield product_work("head", shape.head, self.tokens, HEAD_PASSES * steps)
        vocab = self.pair.target.config.vocab_size
        teacher = 2 * self.tokens * hidden * vocab
        yield Kernel("teacher's head", "gemm", HALF * hidden * vocab, teacher)
        yield AllReduce(HALF * self.tokens * hidden, shape.devices, 2 * times)
