"""A tiny target and draft, and a packed batch of random tokens, for the training tests."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import tiny
from flax import nnx

from eagle3_jax.config import DraftConfig, LatentShape, RopeConfig, YarnConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.kimi import KimiTarget
from eagle3_jax.models.target import Target
from eagle3_jax.training.batches import packed_batches
from eagle3_jax.training.distillation import TargetHead
from eagle3_jax.training.draft import (
    DraftModels,
    DraftRecipe,
    draft_step,
    draft_update,
    split_draft,
)
from eagle3_jax.training.features import feature_pass
from eagle3_jax.training.loop import StepFunction, TrainState
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.packing import PackedBatch, Sample
from eagle3_jax.training.placement import Placement

VOCAB = 40
TARGET = replace(
    tiny.TARGET,
    vocab_size=VOCAB,
    num_hidden_layers=3,
    routed_scaling_factor=1.5,
    kv_lora_rank=16,
    qk_rope_head_dim=8,
    v_head_dim=8,
    max_position_embeddings=64,
    rope=RopeConfig(10000.0, YarnConfig(2.0, 32, mscale=1.0, mscale_all_dim=1.0)),
)
DRAFT = replace(
    tiny.DRAFT,
    vocab_size=VOCAB,
    draft_vocab_size=24,
    intermediate_size=48,
    head_dim=8,
    max_position_embeddings=64,
    aux_layer_ids=(0, 1, 3),
)
LATENT_DRAFT = replace(
    DRAFT,
    rope=TARGET.rope,
    latent=LatentShape(12, 16, 8, 4, 6),
    norm_before_residual=True,
    norm_output=True,
)
"""With other widths for values than for keys, and the norms that a chain passes through."""


def louder(model: nnx.Module, factor: float) -> None:
    """Scales every matrix, so that differences in arithmetic are not lost in tiny activations."""
    state = nnx.state(model, nnx.Param)
    nnx.update(model, jax.tree.map(lambda x: x * factor if x.ndim > 1 else x, state))


def tiny_target(seed: int = 0) -> Target:
    target = KimiTarget(TARGET, rngs=nnx.Rngs(seed))
    louder(target, 6.0)
    return target


def tiny_draft(target: Target, seed: int = 1, config: DraftConfig = DRAFT) -> Eagle3Draft:
    draft = Eagle3Draft(config, rngs=nnx.Rngs(seed), embed_tokens=target.embed_tokens)
    draft.d2t.set_value(jnp.arange(24, dtype=jnp.int32) // 2)
    return draft


def random_batch(seed: int, rows: int = 2, length: int = 24) -> PackedBatch:
    rng = np.random.default_rng(seed)

    def samples():
        for _ in range(rows * length // 6):
            size = int(rng.integers(6, 12))
            ids = rng.integers(0, VOCAB, size).tolist()
            yield Sample(ids, [i > 2 for i in range(size)])

    return next(packed_batches(list(samples()), rows, length))


def training(
    target: Target,
    draft: Eagle3Draft,
    recipe: DraftRecipe,
    *,
    rate: float = 1e-2,
    accumulate: int = 1,
    placement: Placement | None = None,
) -> tuple[StepFunction, TrainState]:
    """A draft's step of the loop and first state; placement: None for one device."""
    place = placement or Placement(None)
    graphdef, params, rest = split_draft(draft)
    target_head, target_head_state = nnx.split(TargetHead(target))
    optimizer = adamw(rate, 30, warmup=5, accumulate=accumulate)
    update = draft_update(optimizer, DraftModels(graphdef, target_head), recipe)
    features = feature_pass(target, draft.config.aux_layer_ids, 8)
    frozen = place.whole(rest), place.whole(target_head_state)
    step = draft_step(update, features, frozen, place, accumulate)
    return step, place.initial(optimizer, place.params(params))
