"""The bytes that one decode step must read, which bound plain decoding of a small batch."""

import time
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from convert.fill import named_variables
from eagle3_jax.models.kimi import KimiTarget

SIZE = 8192
"""Rows and columns of a matrix of 256 MiB in float32, far more than any cache holds."""


class ReadBandwidth:
    """A float32 matrix-vector product, the fastest plain read of XLA's CPU backend."""

    def __init__(self, size: int = SIZE) -> None:
        self._matrix = jnp.ones((size, size), jnp.float32)
        self._vector = jnp.ones((1, size), jnp.float32)
        self._multiply = jax.jit(jnp.matmul).lower(self._vector, self._matrix).compile()
        self.sample()

    def sample(self) -> float:
        """Return the bytes per second of one pass over the matrix."""
        start = time.perf_counter()
        self._multiply(self._vector, self._matrix).block_until_ready()
        return self._matrix.nbytes / (time.perf_counter() - start)


FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ByteFloor:
    """The fewest bytes one step reads: each weight and each cached row once.

    `distinct_experts` is the mean number of routed experts that a MoE layer reads.
    """

    weight_bytes: int
    kv_bytes: int
    distinct_experts: float

    @property
    def total(self) -> int:
        return self.weight_bytes + self.kv_bytes

    def seconds(self, bandwidth: float) -> float:
        """Return the shortest time of a step at `bandwidth` bytes per second."""
        return self.total / bandwidth


def byte_floor(
    target: KimiTarget, *, batch: int, context: float, distinct_experts: float
) -> ByteFloor:
    """Compute the floor of a step of `batch` sequences with `context` cached tokens on average.

    A step reads all weights except the embedding, of which it reads one row per sequence, and the
    routed experts that no row chose. An abstract target is sufficient.
    """
    config = target.config
    arrays = {path: one.get_value() for path, one in named_variables(target).items()}
    sizes = {path: one.size * one.dtype.itemsize for path, one in arrays.items()}
    routed = sum(size for path, size in sizes.items() if ".experts." in path)
    fixed = sum(sizes.values()) - routed - sizes["embed_tokens.embedding"]
    experts = routed * distinct_experts / config.n_routed_experts
    rows = batch * context * config.num_hidden_layers
    return ByteFloor(
        weight_bytes=round(
            fixed + experts + batch * sizes["embed_tokens.embedding"] / config.vocab_size
        ),
        kv_bytes=round(rows * config.latent_attention.latent_dim * FLOAT32_BYTES),
        distinct_experts=float(distinct_experts),
    )
