"""Training of an EAGLE-3 draft against a frozen target, on the states seen at inference."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.training.distillation import DIVERGENCES, TargetHead, compare
from eagle3_jax.training.loop import StepFunction, TrainState
from eagle3_jax.training.packing import Features, PackedBatch
from eagle3_jax.training.placement import Placement
from eagle3_jax.training.unroll import unroll
from pallas_kernels import gpu
from pallas_kernels.dispatch import prefer


@dataclass(frozen=True)
class DraftRecipe:
    """Training options of a draft.

    `num_steps` is the length of the unrolled chain, `step_decay` the weight of a step relative to
    the previous one, because later steps are reached less often. `loss` is a key of DIVERGENCES,
    `dtype` the draft's compute dtype; parameters and optimizer state are float32.
    `keep_activations` avoids recomputation in the backward pass, which is faster if memory allows.
    """

    num_steps: int = 4
    step_decay: float = 0.8
    loss: str = "kl"
    dtype: DTypeLike = jnp.float32
    keep_activations: bool = False

    @property
    def step_weights(self) -> list[float]:
        """Weights of the steps, which sum to 1."""
        weights = [self.step_decay**step for step in range(self.num_steps)]
        return [weight / sum(weights) for weight in weights]


class DraftMetrics(NamedTuple):
    """Weighted loss, agreement of first drafts with the target, and expected accept length.

    `agreement` is the fraction of rows whose first draft is the target's argmax. `accept_length` is
    for greedy decoding with `num_steps` drafts.
    """

    loss: Float[Array, ""]
    agreement: Float[Array, ""]
    accept_length: Float[Array, ""]


class DraftModels(NamedTuple):
    """Graph definitions of the modules whose arrays an update takes: draft and target head."""

    draft: nnx.GraphDef
    target_head: nnx.GraphDef


def draft_loss(
    draft: Eagle3Draft,
    target_head: TargetHead,
    batch: PackedBatch,
    features: Features,
    recipe: DraftRecipe,
    total: Float[Array, ""],
) -> tuple[Float[Array, ""], DraftMetrics]:
    """Sum all steps' divergences from the target's distribution two tokens after each taught row.

    Later steps weigh less. `total` divides the sums.
    """
    states = unroll(
        draft,
        ahead(batch.token_ids),
        jnp.asarray(features.aux),
        jnp.asarray(batch.positions),
        jnp.asarray(batch.segments),
        recipe.num_steps,
        keep_activations=recipe.keep_activations,
    )
    rows = supervised_rows(batch.wanted)
    weights = jnp.stack([weight * rows / total for weight in recipe.step_weights])
    loss, agrees = compare(
        target_head, draft, states, ahead(features.hidden), weights, DIVERGENCES[recipe.loss]
    )
    alive, accepted = jnp.ones_like(rows), []
    for step, found in enumerate(agrees):
        alive = (jnp.roll(alive, 1, axis=1) if step else alive) * found
        accepted.append(jnp.sum(alive * rows) / total)
    return loss, DraftMetrics(loss, accepted[0], 1 + sum(accepted, jnp.float32(0)))


def supervised_rows(
    wanted: Float[Array | np.ndarray, "rows length"],
) -> Float[Array, "rows length"]:
    """Mark rows whose next two tokens are both wanted, where a chain may start or continue."""
    return ahead(wanted) * ahead(ahead(wanted))


def draft_update(
    optimizer: optax.GradientTransformation, models: DraftModels, recipe: DraftRecipe
) -> Callable[..., tuple[TrainState, DraftMetrics]]:
    """Make the function that computes one gradient and updates the state.

    It takes the state, `frozen` (the draft's untrained state and the teacher's), a batch, its
    features and the `total` of `draft_loss`. `optimizer` may accumulate several gradients.
    """

    def update(
        state: TrainState,
        frozen: tuple[Any, Any],
        batch: PackedBatch,
        features: Features,
        total: Float[Array, ""],
    ) -> tuple[TrainState, DraftMetrics]:
        rest, target_head_state = frozen
        target_head = nnx.merge(models.target_head, target_head_state)

        def loss_of(params: Any):
            computed = jax.tree.map(lambda x: x.astype(recipe.dtype), params)
            draft = nnx.merge(models.draft, computed, rest)
            return draft_loss(draft, target_head, batch, features, recipe, total)

        (_, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state), metrics

    return update


def draft_step(
    update: Callable[..., tuple[TrainState, DraftMetrics]],
    features: Callable[[PackedBatch], Features],
    frozen: tuple[Any, Any],
    placement: Placement,
    accumulate: int = 1,
) -> StepFunction:
    """Make a training step that splits a batch into `accumulate` equal parts.

    Each part runs through the target and yields a gradient; all count as one batch.
    """
    compiled = jax.jit(update, donate_argnums=0, compiler_options=gpu.compiler_options())

    def step(state: TrainState, batch: PackedBatch) -> tuple[TrainState, DraftMetrics]:
        asked = np.sum(supervised_rows(batch.wanted))
        total = placement.whole(np.float32(max(asked, 1.0) / accumulate))
        size, found = len(batch.token_ids) // accumulate, []
        for first in range(0, accumulate * size, size):
            part = jax.tree.map(lambda rows, at=first: rows[at : at + size], batch)
            placed = placement.batch(part)
            shown = features(placed)
            placed = placed._replace(features=None)
            with prefer("reference"):  # kernels have no derivatives
                state, metrics = compiled(state, frozen, placed, shown, total)
            found.append(metrics)
        return state, jax.tree.map(lambda *values: sum(values) / accumulate, *found)

    return step


def split_draft(
    draft: Eagle3Draft, frozen: Collection[str] = ("embed_tokens",)
) -> tuple[nnx.GraphDef, Any, Any]:
    """Split a draft into graph definition, trained parameters, and id map plus `frozen` modules."""

    def trained(path: tuple[Any, ...], value: Any) -> bool:
        return isinstance(value, nnx.Param) and path[0] not in frozen

    graphdef, params, rest = nnx.split(draft, trained, ...)
    return graphdef, params, rest


def draft_vocabulary(counts: np.ndarray, size: int) -> np.ndarray:
    """Make d2t offsets, int32 [size], of the `size` most frequent ids (lower id first on ties)."""
    if size > len(counts):
        raise ValueError(f"the draft vocabulary ({size}) exceeds the target's ({len(counts)})")
    frequent = np.argsort(-counts, kind="stable")[:size]
    return (np.sort(frequent) - np.arange(size)).astype(np.int32)


def ahead(x: Array | np.ndarray) -> Array:
    """Shift rows so that row i holds row i + 1. The last row wraps around and must be masked."""
    return jnp.roll(x, -1, axis=1)
