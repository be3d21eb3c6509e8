"""Memory read bandwidth of this thread, by which the byte floor is divided."""

import time

import jax
import jax.numpy as jnp

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
