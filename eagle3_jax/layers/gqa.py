"""Grouped-query attention with rotary positions, as in Llama-style drafts.

On a mesh each device has some query heads and their KV heads. With more devices than KV heads,
neighbours share a KV head: each has all of `k_proj`, `v_proj` and the key norm, slices its head's
columns from the products, and caches the head's context or a part of it.
"""

from functools import partial
from typing import Any

import jax
from flax import nnx
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.cache import KVPools, PageView, rows_and_scale, with_rows
from eagle3_jax.collectives import own_unit
from eagle3_jax.layers.attention import causal_attention, paged_kv
from eagle3_jax.layers.linear import Linear
from eagle3_jax.layers.norm import RMSNorm, head_norms
from eagle3_jax.layers.quantized import kernel_format
from eagle3_jax.layers.rope import RopeTables
from eagle3_jax.layers.split_context import (
    SharedContext,
    attend_heads_to_shares,
    group_of,
    own_part,
)
from eagle3_jax.mesh import MeshAxes
from pallas_kernels import HeadNorms, cache_heads, gqa_decode, joint_matmul, norm_heads
from pallas_kernels.partial_sums import Product, total
from pallas_kernels.rotation import rotate_halves


class GQAttention(nnx.Module):
    """Grouped-query attention. An EAGLE-3 draft feeds it [embedding, state]."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        qk_norm_eps: float | None = None,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
    ):
        """If `qk_norm_eps` is set, norm all queries and all keys of a token with this epsilon."""

        linear = partial(Linear, rngs=rngs, dtype=dtype)
        self.q_proj = linear((input_size, heads * head_dim), ("embed", "heads"))
        of_kv = (input_size, kv_heads * head_dim), ("embed", "kv_heads")
        self.k_proj, self.v_proj = (linear(*of_kv, kv_heads=kv_heads) for _ in range(2))
        self.o_proj = linear((heads * head_dim, hidden_size), ("heads", "embed"))
        if qk_norm_eps is not None:
            sizes = {"heads": heads * head_dim, "kv_heads": kv_heads * head_dim}
            self.q_norm, self.k_norm = (
                RMSNorm(size, qk_norm_eps, axis=axis, dtype=dtype) for axis, size in sizes.items()
            )
            self.k_norm.weight.set_metadata(kv_heads=kv_heads)
        self.has_qk_norm = qk_norm_eps is not None
        self.kv_heads, self.head_dim = kv_heads, head_dim

    @property
    def pool_rows(self) -> tuple[tuple[int, ...], ...]:
        """Shape of a position's row in the key and value pools; a shared KV head counts as one."""
        return ((self.kv_heads if self.context is None else 1, self.head_dim),) * 2

    @property
    def pool_splits(self) -> tuple[tuple[MeshAxes | None, ...], ...]:
        return ((self.k_proj.split[1], None),) * 2

    @property
    def context(self) -> SharedContext | None:
        """Axes and KV heads whose contexts several devices share, or None if no head is shared."""
        axes = self.q_proj.split[1]
        if axes is None or self.k_proj.split[1] is not None:
            return None
        return SharedContext(axes, self.kv_heads)

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    def __call__(
        self,
        x: Float[Array, "batch q_len inputs"],
        rope: RopeTables,
        pools: KVPools = (),
        pages: PageView | None = None,
        norm: RMSNorm | None = None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        """Attend causally from x after `norm`; with pools, write rows there and read from there."""
        if not pools or pages is None:
            heads = causal_attention(*self.project(x, rope, norm), self.scale)
            return self.o_proj(heads.reshape(*x.shape[:2], -1)), pools
        q, k, v = self._multiply(x, norm)
        axes = self.q_proj.split[1]
        here, group = own_part(pages, pools[0], axes), group_of(pools[0], axes)
        (keys, k_scale), (values, v_scale) = map(rows_and_scale, pools)
        with jax.named_scope("cache_heads"):
            norms, write = self._head_norms(q, k), (here.write_pages, here.write_offsets)
            q, keys, values = cache_heads(
                q, k, v, *rope, keys, values, *write, norms=norms, k_scale=k_scale, v_scale=v_scale
            )
        pools = with_rows(pools[0], keys), with_rows(pools[1], values)
        paged = paged_kv(pools, here)
        if group is not None:
            heads = attend_heads_to_shares(q, paged, self.scale, group)
            return self.o_proj(heads.reshape(*x.shape[:2], -1)), pools
        with jax.named_scope("gqa_decode"):
            then = kernel_format(self.o_proj.kernel)
            heads = gqa_decode(q, paged, scale=self.scale, then=then)
        return self.o_proj(heads), pools

    def project(
        self,
        x: Float[Array, "batch q_len inputs"],
        rope: RopeTables,
        norm: RMSNorm | None = None,
    ) -> tuple[
        Float[Array, "batch q_len heads head_dim"],
        Float[Array, "batch q_len kv_heads head_dim"],
        Float[Array, "batch q_len kv_heads head_dim"],
    ]:
        q, k, v = map(total, self._multiply(x, norm))
        if (norms := self._head_norms(q, k)) is not None:
            q, k = norm_heads(q, k, norms)
        q, k, v = (rows.reshape(*x.shape[:2], -1, self.head_dim) for rows in (q, k, v))
        return rotate_halves(q, *rope), rotate_halves(k, *rope), v

    def _multiply(
        self, x: Float[Array, "batch q_len inputs"], norm: RMSNorm | None
    ) -> tuple[Product, ...]:
        """Return queries, keys and values of this device's heads, each [batch, q_len, width].

        These are partial sums, or totals if Q/K norms read them in several kernels.
        """
        kernels = (linear.kernel.get_value() for linear in (self.q_proj, self.k_proj, self.v_proj))
        in_parts = not self.has_qk_norm
        products = joint_matmul(x, *kernels, norm=norm and norm.norm, in_parts=in_parts)
        q, k, v = products
        return q, self._of_own_head(k), self._of_own_head(v)

    def _of_own_head(self, columns: Any) -> Any:
        """Slice the columns of this device's KV head out of those of all heads, if it is shared."""
        if (context := self.context) is None:
            return columns
        head = own_unit(context.heads, context.axes)
        cut = partial(lax.dynamic_slice_in_dim, slice_size=self.head_dim, axis=-1)
        return jax.tree.map(lambda array: cut(array, head * self.head_dim), columns)

    def _head_norms(self, q: Product, k: Product) -> HeadNorms | None:
        if not self.has_qk_norm:
            return None
        # Squares of a shared head count once per device that shares it; so does the divisor.
        norms = head_norms(self.q_norm, self.k_norm, total(q), total(k))
        return norms._replace(k=norms.k._replace(weight=self._of_own_head(norms.k.weight)))
