"""Cache-free causal passes of target and draft, for evaluation and equivalence tests."""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float, Int

from eagle3_jax.config import default_aux_layer_ids
from eagle3_jax.mesh import mesh_of, on_every_device
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.vision.align import aligned


class TargetOutput(NamedTuple):
    """float32 logits [batch, seq, vocab] and aux_hidden [batch, seq, n_aux * hidden]."""

    logits: Float[Array, "batch seq vocab"]
    aux_hidden: Float[Array, "batch seq aux"]


def forward(
    target: Target,
    token_ids: Int[Array | np.ndarray, "batch seq"],
    *,
    aux_layer_ids: Sequence[int] | None = None,
    image_features: Sequence[Float[Array | np.ndarray, "_ hidden"]] | None = None,
) -> TargetOutput:
    """Return logits of every position and the residual stream before each aux layer.

    The default `aux_layer_ids` are the triple that other engines assume; for a pair pass
    `draft.config.aux_layer_ids`. `image_features` (`encode_images`) replace, in order, the
    embeddings of placeholder ids; without them a placeholder is an ordinary token. Raises
    ValueError if counts differ.
    """
    ids = tuple(aux_layer_ids or default_aux_layer_ids(target.config.num_hidden_layers))
    features = None
    if image_features is not None:
        config = target.config
        placeholder, hidden = config.media_placeholder_token_id, config.hidden_size
        features = aligned(np.asarray(token_ids), image_features, placeholder, hidden)
    return _target_pass(target, jnp.asarray(token_ids), features, ids, mesh_of(target))


def draft_forward(
    draft: Eagle3Draft,
    token_ids: Int[Array | np.ndarray, "batch seq"],
    aux_hidden: Float[Array | np.ndarray, "batch seq aux"],
) -> tuple[Float[Array, "batch seq draft_vocab"], Float[Array, "batch seq hidden"]]:
    """Run the draft over a sequence with known target features.

    Row i pairs `token_ids[i]`, already shifted by one (the token after position i), with
    `aux_hidden[i]` at position i. Returns float32 logits over the draft's vocabulary and the
    recurrent state (before the final norm, or after it with norm_output).
    """
    return _draft_pass(draft, jnp.asarray(token_ids), jnp.asarray(aux_hidden), mesh_of(draft))


def _positions(token_ids: Int[Array, "batch seq"]) -> Int[Array, "batch seq"]:
    return jnp.broadcast_to(jnp.arange(token_ids.shape[1]), token_ids.shape)


@nnx.jit(static_argnames=("aux_layer_ids", "mesh"))
def _target_pass(
    target: Target,
    token_ids: Int[Array, "batch seq"],
    features: Float[Array, "batch seq hidden"] | None,
    aux_layer_ids: tuple[int, ...],
    mesh: Mesh | None,
) -> TargetOutput:
    def run(target: Target, token_ids: Array, features: Array | None) -> tuple[Array, Array]:
        hidden, aux_hidden, _ = target(
            token_ids, _positions(token_ids), aux_layer_ids, features=features
        )
        return target.logits(hidden), aux_hidden

    outputs = PartitionSpec(None, None, target.vocab_axis), PartitionSpec()
    return TargetOutput(*on_every_device(run, mesh, target, outputs)(token_ids, features))


@nnx.jit(static_argnames=("mesh",))
def _draft_pass(
    draft: Eagle3Draft,
    token_ids: Int[Array, "batch seq"],
    aux_hidden: Float[Array, "batch seq aux"],
    mesh: Mesh | None,
) -> tuple[Float[Array, "batch seq draft_vocab"], Float[Array, "batch seq hidden"]]:
    def run(draft: Eagle3Draft, token_ids: Array, aux_hidden: Array) -> tuple[Array, Array]:
        state, _ = draft(token_ids, draft.fuse(aux_hidden), _positions(token_ids))
        return draft.logits(state), state

    outputs = PartitionSpec(None, None, draft.vocab_axis), PartitionSpec()
    return on_every_device(run, mesh, draft, outputs)(token_ids, aux_hidden)
