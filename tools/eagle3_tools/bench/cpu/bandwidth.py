"""How fast this thread reads memory: what the byte floor is divided by."""

import time

import jax
import jax.numpy as jnp

SIZE = 8192
"""Rows and columns: 256 MiB of float32, far more than any cache keeps."""


class ReadBandwidth:
    """A float32 matrix-vector product, the fastest plain read that XLA's CPU backend does."""

    def __init__(self, size: int = SIZE) -> None:
        self._matrix = jnp.ones((size, size), jnp.float32)
        self._vector = jnp.ones((1, size), jnp.float32)
        self._multiply = jax.jit(jnp.matmul).lower(self._vector, self._matrix).compile()
        self.sample()

    def sample(self) -> float:
        """Bytes a second of one pass over the matrix."""
        start = time.perf_counter()
        self._multiply(self._vector, self._matrix).block_until_ready()
        return self._matrix.nbytes / (time.perf_counter() - start)
