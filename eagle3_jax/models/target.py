"""Base class of targets: embedding, decoder layers, norm and head, with capture of aux features.

An architecture provides the attention and the feed-forward block of each layer.
"""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.cache import KVPools, PageView
from eagle3_jax.config import TargetConfig
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.linear import Embedding, Linear
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.moe import MoE
from eagle3_jax.layers.norm import RMSNorm
from eagle3_jax.layers.rope import RopeTables, rope_tables
from eagle3_jax.layers.split_context import SharedContext
from eagle3_jax.mesh import MeshAxes
from pallas_kernels import add_norm

Attention = MLAttention | GQAttention
FeedForward = MLP | MoE


class DecoderLayer(nnx.Module):
    """Pre-norm decoder layer: x += attention(norm(x)); x += mlp(norm(x))."""

    def __init__(
        self, config: TargetConfig, attention: Attention, mlp: FeedForward, *, dtype: DTypeLike
    ):
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        self.self_attn = attention
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        self.mlp = mlp

    def __call__(
        self,
        x: Float[Array, "batch q_len hidden"],
        rope: RopeTables,
        pools: KVPools = (),
        pages: PageView | None = None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        attended, pools = self.self_attn(x, rope, pools, pages, self.input_layernorm)
        x, normed = add_norm(x, attended, self.post_attention_layernorm.norm)
        return x + self.mlp(normed), pools


class Target(nnx.Module):
    """A target model. `logits` is separate so that prefill can project one row only.

    `attention` makes the attention of one layer, `feed_forward` the feed-forward block of layer i.
    """

    def __init__(
        self,
        config: TargetConfig,
        attention: Callable[[], Attention],
        feed_forward: Callable[[int], FeedForward],
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike,
    ):
        self.config = config
        hidden, vocab = config.hidden_size, config.vocab_size
        self.embed_tokens = Embedding(vocab, hidden, rngs=rngs, dtype=dtype)
        self.layers = nnx.List(
            [
                DecoderLayer(config, attention(), feed_forward(i), dtype=dtype)
                for i in range(config.num_hidden_layers)
            ]
        )
        self.norm = RMSNorm(hidden, config.rms_norm_eps, dtype=dtype)
        self.lm_head = Linear((hidden, vocab), ("embed", "vocab"), rngs=rngs, dtype=dtype)

    @property
    def pool_rows(self) -> tuple[tuple[int, ...], ...]:
        """Shape of one position's row in each KV pool, in layer order."""
        return tuple(row for layer in self.layers for row in layer.self_attn.pool_rows)

    @property
    def pool_splits(self) -> tuple[tuple[MeshAxes | None, ...], ...]:
        """Mesh axes that split each of these rows."""
        return tuple(split for layer in self.layers for split in layer.self_attn.pool_splits)

    @property
    def contexts(self) -> tuple[SharedContext | None, ...]:
        """Shared context of each of these pools, or None where devices share none."""
        return tuple(
            layer.self_attn.context for layer in self.layers for _ in layer.self_attn.pool_rows
        )

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the computation; on a CPU kernels and embeddings may be narrower."""
        return np.dtype(self.norm.weight.get_value().dtype)

    @property
    def vocab_axis(self) -> MeshAxes | None:
        """Mesh axes over which logits are split."""
        return self.lm_head.split[1]

    @property
    def units(self) -> dict[str, int]:
        return self.config.units

    def rope(self, positions: Int[Array, "batch q_len"]) -> RopeTables:
        return rope_tables(self.config.rope, self.config.rope_dim, positions)

    def embed(
        self,
        token_ids: Int[Array, "batch q_len"],
        features: Float[Array, "batch q_len hidden"] | None = None,
        is_image: Bool[Array, "batch q_len"] | None = None,
    ) -> Float[Array, "batch q_len hidden"]:
        """Return the first layer's input: features at images, embeddings elsewhere.

        `is_image` marks the positions of features; None means all positions of the placeholder id.
        """
        rows = self.embed_tokens(token_ids).astype(self.dtype)
        if features is None:
            return rows
        if is_image is None:
            is_image = token_ids == self.config.media_placeholder_token_id
        return jnp.where(is_image[..., None], features.astype(rows.dtype), rows)

    def __call__(
        self,
        token_ids: Int[Array, "batch q_len"],
        positions: Int[Array, "batch q_len"],
        aux_layer_ids: Sequence[int],
        pools: KVPools = (),
        pages: PageView | None = None,
        features: Float[Array, "batch q_len hidden"] | None = None,
        is_image: Bool[Array, "batch q_len"] | None = None,
    ) -> tuple[
        Float[Array, "batch q_len hidden"],
        Float[Array, "batch q_len aux"],
        KVPools,
    ]:
        """Run the layers; return hidden states (before the final norm), aux features and pools.

        The aux features are the residual stream before each of `aux_layer_ids`, concatenated; id
        num_hidden_layers is the last layer's output. For `features` and `is_image` see `embed`.
        """
        # Equal layers are traced once. The function is new for each call, because the trace depends
        # on state outside JAX's cache keys (pallas_kernels.gpu).
        run = jax.jit(
            lambda graph, state, *inputs: nnx.merge(graph, state)(*inputs), static_argnums=0
        )
        x = self.embed(token_ids, features, is_image)
        rope = self.rope(positions)
        streams: list[Array] = [x]
        written: KVPools = ()
        for i, layer in enumerate(self.layers):
            own = pools[len(written) :][: len(layer.self_attn.pool_rows)]
            with jax.named_scope(f"target_layer_{i}"):
                x, own = run(*nnx.split(layer), x, rope, own, pages)
            streams.append(x)
            written += own
        # Without the barrier XLA fuses the last layer's sum with its consumer and may add in
        # another order in each program. Drafts are trained on the bits that serving has.
        x = streams[-1] = jax.lax.optimization_barrier(x)
        aux = [streams[i] for i in aux_layer_ids] or [x[..., :0]]
        return x, jnp.concatenate(aux, axis=-1), written

    def logits(self, hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows vocab"]:
        """Apply final norm and head; return float32 logits."""
        return self.lm_head(self.normed(hidden)).astype(jnp.float32)

    def normed(self, hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """Return the head's input: the hidden states after the final norm."""
        return self.norm(hidden)
