"""The EAGLE-3 draft (arXiv 2503.01840): one decoder layer on [token embedding, state].

The state is `fc` of the target's aux features where these are known. Elsewhere it is the draft's
own output (before the final norm, or after it with EAGLE-3.1's norm_output).
"""

import math

import jax.numpy as jnp
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.cache import KVPools, PageView
from eagle3_jax.collectives import first_column
from eagle3_jax.config import DraftConfig
from eagle3_jax.layers.gqa import GQAttention
from eagle3_jax.layers.linear import Embedding, Linear
from eagle3_jax.layers.mla import MLAttention
from eagle3_jax.layers.mlp import MLP
from eagle3_jax.layers.norm import RMSNorm
from eagle3_jax.layers.rope import RopeTables, rope_tables
from eagle3_jax.layers.split_context import SharedContext
from eagle3_jax.mesh import MeshAxes


class IdMap(nnx.Variable):
    """Integer table loaded with the weights and never trained."""


class DraftLayer(nnx.Module):
    """`midlayer`: attention over the concatenation of normed embedding and normed state."""

    def __init__(self, config: DraftConfig, *, rngs: nnx.Rngs, dtype: DTypeLike):
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        self.hidden_norm = RMSNorm(hidden, eps, dtype=dtype)
        if (latent := config.latent_attention) is not None:
            self.self_attn = MLAttention(latent, rngs=rngs, dtype=dtype)
        else:
            sizes = config.num_attention_heads, config.num_key_value_heads, config.head_dim
            self.self_attn = GQAttention(2 * hidden, hidden, *sizes, rngs=rngs, dtype=dtype)
        self.post_attention_layernorm = RMSNorm(hidden, eps, dtype=dtype)
        self.mlp = MLP(hidden, config.intermediate_size, rngs=rngs, dtype=dtype)
        self.norm_before_residual = config.norm_before_residual

    def __call__(
        self,
        embedded: Float[Array, "batch q_len hidden"],
        state: Float[Array, "batch q_len hidden"],
        rope: RopeTables,
        pools: KVPools,
        pages: PageView | None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        x, residual = self.enter(embedded, state)
        attended, pools = self.self_attn(x, rope, pools, pages)
        return self.finish(residual + attended), pools

    def enter(
        self,
        embedded: Float[Array, "batch q_len hidden"],
        state: Float[Array, "batch q_len hidden"],
    ) -> tuple[Float[Array, "batch q_len twice"], Float[Array, "batch q_len hidden"]]:
        """Return the attention's input (normed embedding, then normed state) and the residual."""
        normed = self.hidden_norm(state)
        x = jnp.concatenate([self.input_layernorm(embedded), normed], axis=-1)
        return x, normed if self.norm_before_residual else state

    def finish(
        self, residual: Float[Array, "batch q_len hidden"]
    ) -> Float[Array, "batch q_len hidden"]:
        return residual + self.mlp(residual, self.post_attention_layernorm)


class Eagle3Draft(nnx.Module):
    """The EAGLE-3 draft model. The caller may pass the target's embedding and head modules."""

    def __init__(
        self,
        config: DraftConfig,
        *,
        rngs: nnx.Rngs,
        dtype: DTypeLike = jnp.float32,
        embed_tokens: Embedding | None = None,
        lm_head: Linear | None = None,
    ):
        self.config = config
        hidden, draft_vocab = config.hidden_size, config.draft_vocab_size
        self.embed_tokens = embed_tokens or Embedding(
            config.vocab_size, hidden, rngs=rngs, dtype=dtype
        )
        aux, eps = config.target_hidden_size, config.rms_norm_eps
        if config.norm_before_fc:
            self.input_norm = RMSNorm(config.num_aux * aux, eps, dtype=dtype)
        if config.fc_norm:
            self.fc_norm = nnx.List([RMSNorm(aux, eps, dtype=dtype) for _ in config.aux_layer_ids])
        self.fc = Linear((config.num_aux * aux, hidden), (None, "embed"), rngs=rngs, dtype=dtype)
        self.midlayer = DraftLayer(config, rngs=rngs, dtype=dtype)
        self.norm = RMSNorm(hidden, eps, dtype=dtype)
        self.lm_head = lm_head or Linear(
            (hidden, draft_vocab), ("embed", "vocab"), rngs=rngs, dtype=dtype
        )
        if draft_vocab < config.vocab_size:
            self.d2t = IdMap(jnp.zeros((draft_vocab,), jnp.int32), axes=("vocab",))

    @property
    def pool_rows(self) -> tuple[tuple[int, ...], ...]:
        return self.midlayer.self_attn.pool_rows

    @property
    def pool_splits(self) -> tuple[tuple[MeshAxes | None, ...], ...]:
        return self.midlayer.self_attn.pool_splits

    @property
    def contexts(self) -> tuple[SharedContext | None, ...]:
        attention = self.midlayer.self_attn
        return (attention.context,) * len(attention.pool_rows)

    @property
    def vocab_axis(self) -> MeshAxes | None:
        return self.lm_head.split[1]

    @property
    def units(self) -> dict[str, int]:
        config, latent = self.config, self.config.latent is not None
        return {
            "heads": config.num_attention_heads,
            **({} if latent else {"kv_heads": config.num_key_value_heads}),
            "mlp": config.intermediate_size,
            "vocab": math.gcd(config.vocab_size, config.draft_vocab_size),
        }

    def __call__(
        self,
        token_ids: Int[Array, "batch q_len"],
        state: Float[Array, "batch q_len hidden"],
        positions: Int[Array, "batch q_len"],
        pools: KVPools = (),
        pages: PageView | None = None,
        features: Float[Array, "batch q_len hidden"] | None = None,
        is_image: Bool[Array, "batch q_len"] | None = None,
    ) -> tuple[Float[Array, "batch q_len hidden"], KVPools]:
        """Run the layer once; row i pairs token i+1 with the state of position i.

        Returns the new recurrent state and the pools. `features` replace the embeddings of image
        tokens (`is_image`).
        """
        rope = rope_tables(self.config.rope, self.config.rotary_dim, positions)
        embedded = self.embed(token_ids)
        if features is not None and is_image is not None:
            embedded = jnp.where(is_image[..., None], features.astype(embedded.dtype), embedded)
        out, pools = self.midlayer(embedded, state, rope, pools, pages)
        return self.recurrent(out), pools

    def embed(self, token_ids: Int[Array, "*rows"]) -> Float[Array, "*rows hidden"]:
        """Return embeddings in the dtype of the computation; on a CPU the table may be narrower."""
        return self.embed_tokens(token_ids).astype(self.norm.weight.get_value().dtype)

    def fuse(self, aux_hidden: Float[Array, "*rows aux"]) -> Float[Array, "*rows hidden"]:
        """Compute the state of a position from the target's aux features."""
        if self.config.norm_before_fc:
            aux_hidden = self.input_norm(aux_hidden)
        if self.config.fc_norm:
            chunks = jnp.split(aux_hidden, self.config.num_aux, axis=-1)
            normed = [norm(chunk) for norm, chunk in zip(self.fc_norm, chunks, strict=True)]
            aux_hidden = jnp.concatenate(normed, axis=-1)
        return self.fc(aux_hidden)

    def recurrent(self, out: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """Return the state that a layer output passes to the next step."""
        return self.norm(out) if self.config.norm_output else out

    def logits(self, state: Float[Array, "*rows hidden"]) -> Float[Array, "*rows draft_vocab"]:
        """Return float32 logits over the draft's own vocabulary."""
        return self.lm_head(self.normed(state)).astype(jnp.float32)

    def normed(self, state: Float[Array, "*rows hidden"]) -> Float[Array, "*rows hidden"]:
        """Return the head's input: the state after the final norm, which it may already include."""
        return state if self.config.norm_output else self.norm(state)

    @property
    def target_ids(self) -> Int[Array, " draft_vocab"] | None:
        """Target id of each draft id on this device, or None if the vocabularies are equal."""
        if self.config.draft_vocab_size == self.config.vocab_size:
            return None
        offsets = self.d2t.get_value()
        draft_ids = first_column(offsets.size, self.vocab_axis) + jnp.arange(offsets.size)
        return draft_ids + offsets
