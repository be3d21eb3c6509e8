"""Paged contexts of decode steps, for the cases of the attention operations."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from pallas_kernels.paged.kv import PagedKV

KV_SCALE = 0.25
LONG = 8704
"""Slots of a prompt of 8K in the middle of an answer of 1K."""


@dataclass(frozen=True)
class PagedCase:
    """Sequences of `context` slots each, of which the last q_len are queries or tree nodes."""

    q_len: int
    context: int
    page_size: int = 64
    fp8: bool = False
    tree: bool = False
    batch: int = 16

    @property
    def variant(self) -> str:
        """Name in a case: `q4_8k_page16_fp8`; with a batch other than 16 `q4_8k_page16_b64`."""
        parts = [f"q{self.q_len}", f"{self.context / 1024:g}k", f"page{self.page_size}"]
        parts += [f"b{self.batch}"] * (self.batch != 16)
        return "_".join([*parts, *["fp8"] * self.fp8, *["tree"] * self.tree])

    @property
    def kv_dtype(self) -> DTypeLike:
        return jnp.float8_e4m3fn if self.fp8 else jnp.bfloat16

    @property
    def pages(self) -> int:
        """Pages of one pool: those of the sequences and one scratch page."""
        return self.batch * (self.context // self.page_size) + 1

    def queries(self, key: Array, *dims: int) -> Float[Array, "batch q_len heads dim"]:
        return jax.random.normal(key, (self.batch, self.q_len, *dims), jnp.bfloat16)

    def pool(self, key: Array, *row: int) -> Float[Array, "pages page_size *row"]:
        """Return a pool of normal rows; a float8 pool stores them divided by KV_SCALE."""
        rows = jax.random.normal(key, (self.pages, self.page_size, *row), jnp.bfloat16)
        return (rows / KV_SCALE).astype(self.kv_dtype) if self.fp8 else rows

    def _positions(self) -> Int[Array, "batch q_len"]:
        """Return the rows' positions; tree nodes all have the last position before the tree."""
        first = self.context - self.q_len
        rows = jnp.full(self.q_len, first - 1) if self.tree else first + jnp.arange(self.q_len)
        return jnp.broadcast_to(rows.astype(jnp.int32), (self.batch, self.q_len))

    def view(self, key: Array, *pools: Array) -> PagedKV:
        """Return a PagedKV of these pools, with pages in a random order drawn from the key."""
        scales = tuple(jnp.float32(KV_SCALE) if self.fp8 else None for _ in pools)
        ancestors = self._ancestors() if self.tree else None
        table = jax.random.permutation(key, self.pages - 1).reshape(self.batch, -1) + 1
        return PagedKV(pools, scales, table, self._positions(), ancestors)

    def _ancestors(self) -> Bool[Array, "batch q_len nodes"]:
        """Return the ancestors of a binary tree: the parent of node i is (i - 1) // 2."""
        mask = np.eye(self.q_len, dtype=bool)
        for node in range(1, self.q_len):
            mask[node] |= mask[(node - 1) // 2]
        return jnp.broadcast_to(mask, (self.batch, *mask.shape))
