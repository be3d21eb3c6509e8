"""Router scores and margins along a sequence, recomputed without a cache in float32."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from eagle3_jax.layers.moe import MoE
from eagle3_jax.mesh import mesh_of, on_every_device
from eagle3_jax.models.target import Target
from eagle3_jax.vision.align import aligned


def router_scores(
    target: Target, token_ids: Int[Array, "batch seq"], image_features: Sequence[Array] = ()
) -> Float[Array, "moe_layers batch seq experts"]:
    """The biased scores by which each MoE layer chooses its experts, at every position; of a target
    on several devices each finds the same. image_features: as of `eagle3_jax.forward`."""
    rows = None
    if image_features:
        placeholder, hidden = target.config.media_placeholder_token_id, target.config.hidden_size
        rows = aligned(np.asarray(token_ids), image_features, placeholder, hidden)
    return _on_its_devices(target, token_ids, rows, mesh_of(target))


@nnx.jit(static_argnames=("mesh",))
def _on_its_devices(
    target: Target,
    token_ids: Int[Array, "batch seq"],
    features: Float[Array, "batch seq hidden"] | None,
    mesh: Mesh | None,
) -> Float[Array, "moe_layers batch seq experts"]:
    return on_every_device(_scores, mesh, target, PartitionSpec())(token_ids, features)


def _scores(
    target: Target,
    token_ids: Int[Array, "batch seq"],
    features: Float[Array, "batch seq hidden"] | None,
) -> Float[Array, "moe_layers batch seq experts"]:
    positions = jnp.broadcast_to(jnp.arange(token_ids.shape[1]), token_ids.shape)
    rope = target.rope(positions)
    moe = target.config.moe
    x, scores = target.embed(token_ids, features), []
    for layer in target.layers:
        if isinstance(layer.mlp, MoE):
            attended, _ = layer.self_attn(layer.input_layernorm(x), rope)
            gate, inputs = layer.mlp.gate, layer.post_attention_layernorm(x + attended)
            logits = inputs @ gate.kernel.get_value()
            scores.append(jax.nn.sigmoid(logits) + gate.e_score_correction_bias.get_value())
        x, _ = layer(x, rope)
    empty = jnp.zeros((0, *token_ids.shape, moe.n_routed_experts if moe else 0))
    return jnp.stack(scores) if scores else empty


def router_margins(scores: np.ndarray, chosen: int) -> np.ndarray:
    """How far the last chosen expert lies above the first one left out, [moe_layers, batch, seq].

    Infinite where every expert is chosen.
    """
    if chosen >= scores.shape[-1]:
        return np.full(scores.shape[:-1], np.inf)
    best = -np.sort(-scores, axis=-1)
    return best[..., chosen - 1] - best[..., chosen]


def mean_distinct_experts(scores: np.ndarray, chosen: int) -> float:
    """Distinct experts that the rows of a step choose together, over layers and steps."""
    ids = np.argsort(-scores, axis=-1, kind="stable")[..., :chosen]
    layers, _, seq, _ = ids.shape
    steps = np.moveaxis(ids, 1, 2).reshape(layers * seq, -1)
    return float(np.mean([len(set(step.tolist())) for step in steps]))
