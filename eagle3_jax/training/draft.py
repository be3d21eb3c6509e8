"""Trains an EAGLE-3 draft against a frozen target, on the states it will see at inference."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jaxtyping import Array, Float

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.loop import StepFunction, TrainState
from eagle3_jax.training.packing import PackedBatch
from eagle3_jax.training.target_pass import target_pass
from eagle3_jax.training.unroll import unroll

STEP_DECAY = 0.8  # later steps are reached less often


class DraftMetrics(NamedTuple):
    """Weighted loss; share of rows where the first step agrees with the target's argmax; expected
    accept_length of greedy decoding with as many drafts as training steps."""

    loss: Float[Array, ""]
    agreement: Float[Array, ""]
    accept_length: Float[Array, ""]


class Lesson(NamedTuple):
    """What the frozen target says about a batch.

    probs is the target's distribution of the token two after each row, over the draft's vocabulary
    (it sums to less than 1 where that lacks some of it); best is its most likely draft id, or -1
    when that token has none; wanted marks the rows from which a chain may start or go on.
    """

    aux_hidden: Float[Array, "rows length aux"]
    probs: Float[Array, "rows length draft_vocab"]
    best: Array
    wanted: Float[Array, "rows length"]


def lesson(target: Target, draft: Eagle3Draft, batch: PackedBatch) -> Lesson:
    """Runs the target over a batch and lines its predictions up with the draft's rows."""
    out = target_pass(target, batch)
    aux = jnp.concatenate([out.streams[i] for i in draft.config.aux_layer_ids], axis=-1)
    full = jax.nn.softmax(_ahead(target.logits(out.hidden)), axis=-1)
    ids = draft.target_ids
    probs = full if ids is None else full[..., ids]
    best = jnp.argmax(probs, axis=-1)
    covered = jnp.max(probs, axis=-1) == jnp.max(full, axis=-1)
    wanted = jnp.asarray(batch.wanted)
    rows = _ahead(wanted) * _ahead(_ahead(wanted))
    parts = Lesson(aux, probs, jnp.where(covered, best, -1), rows)
    return jax.tree.map(jax.lax.stop_gradient, parts)


def draft_loss(
    draft: Eagle3Draft, batch: PackedBatch, taught: Lesson, num_steps: int
) -> tuple[Float[Array, ""], DraftMetrics]:
    """Cross-entropy of every step against the target's distribution, later steps weighing less."""
    tokens, segments = jnp.asarray(batch.token_ids), jnp.asarray(batch.segments)
    positions = jnp.asarray(batch.positions)
    states = unroll(draft, _ahead(tokens), taught.aux_hidden, positions, segments, num_steps)
    total = jnp.maximum(jnp.sum(taught.wanted), 1.0)
    loss, alive, accepted = jnp.float32(0), jnp.ones_like(taught.wanted), []
    for step, state in enumerate(states):
        logits = draft.logits(state)
        losses = -jnp.sum(taught.probs * jax.nn.log_softmax(logits, axis=-1), axis=-1)
        loss += STEP_DECAY**step * jnp.sum(losses * taught.wanted) / total
        agrees = jnp.argmax(logits, axis=-1) == taught.best
        alive = (jnp.roll(alive, 1, axis=1) if step else alive) * agrees
        accepted.append(jnp.sum(alive * taught.wanted) / total)
    loss /= sum(STEP_DECAY**step for step in range(num_steps))
    return loss, DraftMetrics(loss, accepted[0], 1 + sum(accepted, jnp.float32(0)))


def draft_step(
    optimizer: optax.GradientTransformation,
    graphdef: nnx.GraphDef,
    target_graphdef: nnx.GraphDef,
    num_steps: int,
) -> StepFunction:
    """The update of the draft; `frozen` is (the draft's untrained state, the target's state)."""

    def step(state: TrainState, frozen: tuple[Any, Any], batch: PackedBatch):
        draft_rest, target_state = frozen
        target = nnx.merge(target_graphdef, target_state)

        def loss_of(params: Any):
            draft = nnx.merge(graphdef, params, draft_rest)
            return draft_loss(draft, batch, taught, num_steps)

        taught = lesson(target, nnx.merge(graphdef, state.params, draft_rest), batch)
        (_, metrics), grads = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        return TrainState(optax.apply_updates(state.params, updates), opt_state), metrics

    return step


def split_draft(draft: Eagle3Draft) -> tuple[nnx.GraphDef, Any, Any]:
    """Graph definition, trained parameters, and the rest: the shared embedding and the id map."""

    def trained(path: tuple[Any, ...], value: Any) -> bool:
        return isinstance(value, nnx.Param) and path[0] != "embed_tokens"

    graphdef, params, rest = nnx.split(draft, trained, ...)
    return graphdef, params, rest


def draft_vocabulary(counts: np.ndarray, size: int) -> np.ndarray:
    """d2t offsets, int32 [size], of the `size` most frequent ids (lower id first on ties)."""
    if size > len(counts):
        raise ValueError(f"the draft vocabulary ({size}) exceeds the target's ({len(counts)})")
    frequent = np.argsort(-counts, kind="stable")[:size]
    return (np.sort(frequent) - np.arange(size)).astype(np.int32)


def _ahead(x: Array) -> Array:
    """Row i gets what row i + 1 holds; the last row wraps around and must be masked."""
    return jnp.roll(x, -1, axis=1)
