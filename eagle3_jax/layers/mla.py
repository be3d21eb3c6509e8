"""Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434): naive and absorbed form.

A cache row is the normalised latent (kv_lora_rank) followed by the rotated shared key
(qk_rope_head_dim). Without a cache, the latent is expanded to per-head keys and values. With one,
the up-projections are absorbed into query and output, and attention runs on the latent itself.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.cache import KVPools, PageView, rows_and_scale, with_rows
from eagle3_jax.config import LatentAttentionConfig
from eagle3_jax.layers.attention import causal_attention, paged_kv
from eagle3_jax.layers.linear import Linear, normal_param
from eagle3_jax.layers.norm import RMSNorm
from eagle3_jax.layers.quantized import kernel_format
from eagle3_jax.layers.rope import RopeTables
from eagle3_jax.layers.split_context import (
    SharedContext,
    attend_in_chunks,
    attend_to_shares,
    goes_in_chunks,
    group_of,
    own_part,
)
from eagle3_jax.mesh import MeshAxes
from pallas_kernels import (
    PagedKV,
    absorb_query,
    cache_latents,
    joint_matmul,
    mla_decode,
    mla_prefill,
)
from pallas_kernels.partial_sums import Product, total
from pallas_kernels.quantized import Rows
from pallas_kernels.rotation import rotate_interleaved

EXPANDED_ROWS = 256
"""Chunk length from which expanding the context is less work than absorbing the queries."""


class LatentUp(nnx.Module):
    """`kv_b_proj`, kept as its two halves: latent -> key (W_UK) and latent -> value (W_UV)."""

    def __init__(self, config: LatentAttentionConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        heads, latent = config.num_attention_heads, config.kv_lora_rank
        axes = ("heads", "latent", "head_dim")
        self.key_kernel = normal_param((heads, latent, config.qk_nope_head_dim), axes, rngs, dtype)
        self.value_kernel = normal_param((heads, latent, config.v_head_dim), axes, rngs, dtype)


class MLAttention(nnx.Module):
    """Multi-head latent attention; queries have a low rank unless `q_lora_rank` is None."""

    def __init__(self, config: LatentAttentionConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        inputs, heads = config.input_size, config.num_attention_heads
        q_width = heads * config.qk_head_dim

        linear = partial(Linear, rngs=rngs, dtype=dtype)
        if config.q_lora_rank is None:
            self.q_proj = linear((inputs, q_width), ("embed", "heads"))
        else:
            self.q_a_proj = linear((inputs, config.q_lora_rank), ("embed", None))
            self.q_a_layernorm = RMSNorm(config.q_lora_rank, config.latent_norm_eps, dtype=dtype)
            self.q_b_proj = linear((config.q_lora_rank, q_width), (None, "heads"))
        self.kv_a_proj_with_mqa = linear((inputs, config.latent_dim), ("embed", None))
        self.kv_a_layernorm = RMSNorm(config.kv_lora_rank, config.latent_norm_eps, dtype=dtype)
        self.kv_b_proj = LatentUp(config, rngs=rngs, dtype=dtype)
        self.o_proj = linear((heads * config.v_head_dim, config.hidden_size), ("heads", "embed"))
        self.config = config

    @property
    def pool_rows(self) -> tuple[tuple[int, ...], ...]:
        return ((self.config.latent_dim,),)

    @property
    def pool_splits(self) -> tuple[tuple[MeshAxes | None, ...], ...]:
        """Mesh axes that split each such row: none, because all heads read the same latents."""
        return ((None,),)

    @property
    def context(self) -> SharedContext | None:
        """Axes of the devices that share the latents' context, or None on a single device."""
        axes = self._query_heads.split[1]
        return None if axes is None else SharedContext(axes, 1)

    @property
    def scale(self) -> float:
        return self.config.softmax_scale

    def __call__(
        self,
        x: Float[Array, "batch q_len inputs"],
        rope: RopeTables,
        pools: KVPools = (),
        pages: PageView | None = None,
        norm: RMSNorm | None = None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        """Attend causally from x after `norm`; with a pool, write rows there and read from it."""
        if not pools or pages is None:
            heads = causal_attention(*self.project(x, rope, norm), self.scale)
            return self.o_proj(heads.reshape(*x.shape[:2], -1)), pools
        q_low, compressed = self._compress(x, norm)
        latents, kv_scale = rows_and_scale(pools[0])
        here = own_part(pages, pools[0], self._query_heads.split[1])
        write, options = (here.write_pages, here.write_offsets), dict[str, Any](kv_scale=kv_scale)
        if self.config.q_lora_rank is not None:
            options |= {"q_low": q_low, "q_norm": self.q_a_layernorm.norm}
            options["q_format"] = kernel_format(self.q_b_proj.kernel)
        with jax.named_scope("cache_latents"):
            latents, normed = cache_latents(
                compressed, self.kv_a_layernorm.norm, *rope, latents, *write, **options
            )
        pools = (with_rows(pools[0], latents),)
        q = self._queries(total(q_low) if normed is None else normed)
        heads = self._attend(q, rope, pools, pages, paged_kv(pools, here))
        return self.o_proj(heads.reshape(*x.shape[:2], -1)), pools

    def project(
        self,
        x: Float[Array, "batch q_len inputs"],
        rope: RopeTables,
        norm: RMSNorm | None = None,
    ) -> tuple[
        Float[Array, "batch q_len heads qk"],
        Float[Array, "batch q_len heads qk"],
        Float[Array, "batch q_len heads v"],
    ]:
        """Return queries, keys and values of every head, with the latent expanded."""
        q_low, compressed = map(total, self._compress(x, norm))
        if self.config.q_lora_rank is not None:
            q_low = self.q_a_layernorm(q_low)
        q_nope, q_rope = jnp.split(self._queries(q_low), [self.config.qk_nope_head_dim], axis=-1)
        latent, key_rope = jnp.split(compressed, [self.config.kv_lora_rank], axis=-1)
        key_rope = rotate_interleaved(key_rope[:, :, None], *rope)
        latent = self.kv_a_layernorm(latent)
        keys = jnp.einsum("bsc,hcd->bshd", latent, self.kv_b_proj.key_kernel.get_value())
        values = jnp.einsum("bsc,hcd->bshd", latent, self.kv_b_proj.value_kernel.get_value())
        key_rope = jnp.broadcast_to(key_rope, (*keys.shape[:3], key_rope.shape[-1]))
        q = jnp.concatenate([q_nope, rotate_interleaved(q_rope, *rope)], axis=-1)
        return q, jnp.concatenate([keys, key_rope], axis=-1), values

    def _compress(
        self, x: Float[Array, "batch q_len inputs"], norm: RMSNorm | None
    ) -> tuple[Product, Product]:
        """Project x to the inputs of queries and of latents, each [batch, q_len, width].

        Without a low rank, the queries' input is x itself.
        """
        if self.config.q_lora_rank is None:
            x = x if norm is None else norm(x)
            return x, self.kv_a_proj_with_mqa(x)
        linears = self.q_a_proj, self.kv_a_proj_with_mqa
        kernels = (linear.kernel.get_value() for linear in linears)
        q_low, compressed = joint_matmul(x, *kernels, norm=norm and norm.norm, in_parts=True)
        return q_low, compressed

    def _queries(self, q_low: Rows) -> Float[Array, "batch q_len heads qk"]:
        """Return unrotated queries; a low-rank `q_low` must be normed."""
        q = self._query_heads(q_low)
        return q.reshape(*q.shape[:2], -1, self.config.qk_head_dim)

    @property
    def _query_heads(self) -> Linear:
        return self.q_proj if self.config.q_lora_rank is None else self.q_b_proj

    def _attend(
        self,
        queries: Float[Array, "batch q_len heads qk"],
        rope: RopeTables,
        pools: KVPools,
        pages: PageView,
        paged: PagedKV,
    ) -> Float[Array, "batch q_len heads v"]:
        """Attend over the cache: absorbed for few rows, on expanded keys and values for many.

        `paged` is this device's part of pools and pages.
        """
        group, scale = group_of(pools[0], self._query_heads.split[1]), self.scale
        key_kernel = self.kv_b_proj.key_kernel.get_value()
        value_kernel = self.kv_b_proj.value_kernel.get_value()
        if queries.shape[1] < EXPANDED_ROWS or paged.ancestors is not None:
            with jax.named_scope("mla_absorb_query"):
                absorbed = absorb_query(queries, key_kernel, *rope)
            if group is not None:
                return attend_to_shares(*absorbed, paged, scale, value_kernel, group)
            with jax.named_scope("mla_decode"):
                return mla_decode(*absorbed, paged, scale=scale, value_kernel=value_kernel)
        q_nope, q_rope = jnp.split(queries, [self.config.qk_nope_head_dim], axis=-1)
        with jax.named_scope("mla_prefill"):
            q_rope = rotate_interleaved(q_rope, *rope)
            kernels = {"key_kernel": key_kernel, "value_kernel": value_kernel}
            if goes_in_chunks(paged, group):
                return attend_in_chunks(q_nope, q_rope, paged, pages, scale, group, **kernels)
            return mla_prefill(q_nope, q_rope, paged, scale=scale, **kernels)
