"""The two programs of a training step as shapes: the target's features, and the draft's update."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import ShapeDtypeStruct

from eagle3_jax.mesh import shard
from eagle3_jax.training.distillation import TargetHead
from eagle3_jax.training.draft import DraftModels, DraftRecipe, draft_update, split_draft
from eagle3_jax.training.features import Features, feature_program
from eagle3_jax.training.optimizer import adamw
from eagle3_jax.training.packing import PackedBatch
from eagle3_jax.training.placement import Placement, training_mesh, with_whole_embedding
from eagle3_tools.plan.planner import AbstractPair
from eagle3_tools.plan.training.model import Part
from eagle3_tools.plan.training.options import TrainingOptions
from pallas_kernels import gpu
from pallas_kernels.dispatch import prefer

EMBEDDING = "embed_tokens"
"""The target's embedding, which a new draft shares and does not train."""


@dataclass(frozen=True)
class AbstractProgram:
    """A function and the placed shapes of its arguments. frozen: index of the argument with the
    target's weights; donate: indices of donated ones."""

    function: Callable[..., Any]
    shapes: tuple[Any, ...]
    frozen: int = 0
    donate: tuple[int, ...] = ()


def training_programs(
    options: TrainingOptions, pair: AbstractPair, arch: str, devices: Sequence[Any]
) -> dict[Part, AbstractProgram]:
    """Return one replica's `features` and `update`, as `eagle3-train draft` runs them.

    pair: abstract; its target is placed on their mesh. arch: the GPU that kernels are chosen for.
    """
    parallel = options.pair.parallel
    placement = Placement(
        training_mesh(
            1,
            parallel.devices,
            enable_expert_parallel=parallel.expert_parallel,
            devices=devices,
        )
    )
    if placement.mesh is not None:
        shard(pair.target, placement.mesh)
    shape = (options.rows, options.pair.max_model_len)
    # Shapes stand in for arrays.
    ids: Any = ShapeDtypeStruct(shape, jnp.int32)
    wanted: Any = ShapeDtypeStruct(shape, jnp.float32)
    batch = placement.batch(PackedBatch(ids, ids, ids, wanted))
    with gpu.assume(arch):
        features = _features(options, pair, batch)
    return {"features": features, "update": _update(options, pair, placement, batch)}


def _features(options: TrainingOptions, pair: AbstractPair, batch: PackedBatch) -> AbstractProgram:
    assert pair.draft is not None, "a draft is trained"
    run, leaves = feature_program(pair.target, pair.draft.config.aux_layer_ids, options.chunk)
    return AbstractProgram(run, (leaves, (batch.token_ids, batch.segments, batch.positions)))


def _update(
    options: TrainingOptions, pair: AbstractPair, placement: Placement, batch: PackedBatch
) -> AbstractProgram:
    target, draft = pair.target, pair.draft
    assert draft is not None, "a draft is trained"
    draft.embed_tokens = target.embed_tokens
    graphdef, params, rest = split_draft(with_whole_embedding(draft, target), (EMBEDDING,))
    target_head, target_head_state = nnx.split(TargetHead(target))
    optimizer = adamw(1e-4, 1000)
    computed = target.dtype
    recipe = DraftRecipe(options.unroll, dtype=computed)
    update = draft_update(optimizer, DraftModels(graphdef, target_head), recipe)
    masters = jax.tree.map(lambda x: ShapeDtypeStruct(x.shape, jnp.float32), params)
    state = placement.initial_shapes(optimizer, placement.params(masters))
    frozen = placement.whole((rest, target_head_state))
    shape, config = batch.token_ids.shape, draft.config
    widths = config.num_aux * config.target_hidden_size, target.config.hidden_size
    rows: list[Any] = [ShapeDtypeStruct((*shape, width), computed) for width in widths]
    shown = Features(*rows)
    total = placement.whole(ShapeDtypeStruct((), jnp.float32))

    def run(*arguments: Any) -> Any:
        with prefer("reference"):  # Same as `draft_step`.
            return update(*arguments)

    return AbstractProgram(
        run, (state, frozen, batch, placement.batch(shown), total), 1, donate=(0,)
    )
