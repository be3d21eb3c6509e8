"""Trains an EAGLE-3 draft against a frozen target, on the states it will see at inference."""

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
from eagle3_jax.training.divergence import DIVERGENCES
from eagle3_jax.training.lesson import Teacher, compare
from eagle3_jax.training.loop import StepFunction, TrainState
from eagle3_jax.training.packing import Features, PackedBatch
from eagle3_jax.training.placement import Placement
from eagle3_jax.training.unroll import unroll
from pallas_kernels import gpu
from pallas_kernels.dispatch import prefer


@dataclass(frozen=True)
class DraftRecipe:
    """How a draft is trained.

    num_steps: of the unrolled chain; step_decay: the weight of a step over that of the one before,
    because later ones are reached less often. loss: a key of DIVERGENCES. dtype: in which the draft
    computes; its parameters and the optimizer's are float32. keep_activations: backward runs no
    layer twice, which is faster where memory has room.
    """

    num_steps: int = 4
    step_decay: float = 0.8
    loss: str = "kl"
    dtype: DTypeLike = jnp.float32
    keep_activations: bool = False

    @property
    def step_weights(self) -> list[float]:
        """They add up to 1."""
        weights = [self.step_decay**step for step in range(self.num_steps)]
        return [weight / sum(weights) for weight in weights]


class DraftMetrics(NamedTuple):
    """Weighted loss; share of rows where the first step agrees with the target's argmax; expected
    accept_length of greedy decoding with as many drafts as training steps."""

    loss: Float[Array, ""]
    agreement: Float[Array, ""]
    accept_length: Float[Array, ""]


class DraftModels(NamedTuple):
    """Structures of what an update is given as arrays: the draft, and its target's end."""

    draft: nnx.GraphDef
    teacher: nnx.GraphDef


def draft_loss(
    draft: Eagle3Draft,
    teacher: Teacher,
    batch: PackedBatch,
    features: Features,
    recipe: DraftRecipe,
    total: Float[Array, ""],
) -> tuple[Float[Array, ""], DraftMetrics]:
    """How far every step is from the target's distribution of the token two after each taught row;
    later steps weigh less. total: what sums over rows are divided by."""
    states = unroll(
        draft,
        ahead(batch.token_ids),
        jnp.asarray(features.aux),
        jnp.asarray(batch.positions),
        jnp.asarray(batch.segments),
        recipe.num_steps,
        keep_activations=recipe.keep_activations,
    )
    rows = taught_rows(batch.wanted)
    weights = jnp.stack([weight * rows / total for weight in recipe.step_weights])
    loss, agrees = compare(
        teacher, draft, states, ahead(features.hidden), weights, DIVERGENCES[recipe.loss]
    )
    alive, accepted = jnp.ones_like(rows), []
    for step, found in enumerate(agrees):
        alive = (jnp.roll(alive, 1, axis=1) if step else alive) * found
        accepted.append(jnp.sum(alive * rows) / total)
    return loss, DraftMetrics(loss, accepted[0], 1 + sum(accepted, jnp.float32(0)))


def taught_rows(wanted: Float[Array | np.ndarray, "rows length"]) -> Float[Array, "rows length"]:
    """1 in rows whose draft, the token two after them, is wanted, as is the one before it: there a
    chain may start or go on."""
    return ahead(wanted) * ahead(ahead(wanted))


def draft_update(
    optimizer: optax.GradientTransformation, models: DraftModels, recipe: DraftRecipe
) -> Callable[..., tuple[TrainState, DraftMetrics]]:
    """One gradient, and the update that it, or it with others, makes: of the state, `frozen` (the
    draft's untrained state and the teacher's), a batch, its features and `draft_loss`'s total."""

    def update(
        state: TrainState,
        frozen: tuple[Any, Any],
        batch: PackedBatch,
        features: Features,
        total: Float[Array, ""],
    ) -> tuple[TrainState, DraftMetrics]:
        rest, teacher_state = frozen
        teacher = nnx.merge(models.teacher, teacher_state)

        def loss_of(params: Any):
            computed = jax.tree.map(lambda x: x.astype(recipe.dtype), params)
            draft = nnx.merge(models.draft, computed, rest)
            return draft_loss(draft, teacher, batch, features, recipe, total)

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
    """A step of the loop: a batch in `accumulate` equal parts, of which each is run through the
    target and makes a gradient. All parts count as in one batch."""
    compiled = jax.jit(update, donate_argnums=0, compiler_options=gpu.compiler_options())

    def step(state: TrainState, batch: PackedBatch) -> tuple[TrainState, DraftMetrics]:
        asked = np.sum(taught_rows(batch.wanted))
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
    """Graph definition, trained parameters, and the rest: the id map and the `frozen` modules."""

    def trained(path: tuple[Any, ...], value: Any) -> bool:
        return isinstance(value, nnx.Param) and path[0] not in frozen

    graphdef, params, rest = nnx.split(draft, trained, ...)
    return graphdef, params, rest


def draft_vocabulary(counts: np.ndarray, size: int) -> np.ndarray:
    """d2t offsets, int32 [size], of the `size` most frequent ids (lower id first on ties)."""
    if size > len(counts):
        raise ValueError(f"the draft vocabulary ({size}) exceeds the target's ({len(counts)})")
    frequent = np.argsort(-counts, kind="stable")[:size]
    return (np.sort(frequent) - np.arange(size)).astype(np.int32)


def ahead(x: Array | np.ndarray) -> Array:
    """Row i gets what row i + 1 holds; the last row wraps around and must be masked."""
    return jnp.roll(x, -1, axis=1)
