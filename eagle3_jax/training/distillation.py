"""Distillation targets from the frozen target model, and the loss of each draft step.

Logits exist once, for one block of positions at a time, and their gradient is computed with them.
With 163,840 ids the logits of a row of 20K tokens would take 13 GB.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from pallas_kernels import gpu

Divergence = Callable[
    [Float[Array, "*rows draft_vocab"], Float[Array, "*rows draft_vocab"]], Float[Array, "*rows"]
]
"""Function of the target's probabilities of the draft's ids (their sum is below 1 if the draft
lacks ids) and the draft's log-probabilities."""

TRUST = 3.0
"""Rate at which `lk` moves from cross-entropy to total variation as acceptance grows."""


def cross_entropy(probs: Array, log_q: Array) -> Array:
    """Cross-entropy, whose gradient is that of the KL divergence."""
    return -jnp.sum(probs * log_q, axis=-1)


def acceptance(probs: Array, log_q: Array) -> Array:
    """Acceptance probability under rejection sampling: 1 - total variation."""
    return jnp.sum(jnp.minimum(probs, jnp.exp(log_q)), axis=-1)


def total_variation(probs: Array, log_q: Array) -> Array:
    """Half the sum of absolute differences, including the ids that the draft lacks."""
    return 1 - acceptance(probs, log_q)


def likelihood_of_acceptance(probs: Array, log_q: Array) -> Array:
    """Mix cross-entropy at low acceptance with total variation at high acceptance.

    This is the hybrid LK loss (arXiv 2602.23881). Far from the target TV has almost no gradient.
    """
    share = jnp.exp(-TRUST * jax.lax.stop_gradient(acceptance(probs, log_q)))
    return share * cross_entropy(probs, log_q) + (1 - share) * total_variation(probs, log_q)


DIVERGENCES: Mapping[str, Divergence] = {
    "kl": cross_entropy,
    "tv": total_variation,
    "lk": likelihood_of_acceptance,
}


GPU_BLOCK, CPU_BLOCK = 256, 32
"""Positions of each row whose logits are in memory together. With fewer, a GPU would wait for the
head's weights; with more, a CPU core's cache would overflow."""


class TargetHead(nnx.Module):
    """The target's final norm and head, which turn its last states into logits."""

    def __init__(self, target: Target):
        self.norm, self.lm_head = target.norm, target.lm_head

    def logits(self, hidden: Float[Array, "*rows hidden"]) -> Float[Array, "*rows vocab"]:
        return self.lm_head(self.norm(hidden)).astype(jnp.float32)


class DistillationTargets(NamedTuple):
    """The target's distribution over draft ids, and its most likely id as a draft id.

    If the draft lacks ids, `probs` sum to less than 1, and `best` is -1 if it lacks the best.
    """

    probs: Float[Array, "*rows draft_vocab"]
    best: Array


class DraftHead(nnx.Module):
    """The draft's final norm and head, which turn its states into logits."""

    def __init__(self, draft: Eagle3Draft):
        self.norm, self.lm_head = draft.norm, draft.lm_head
        self.is_normed = draft.config.norm_output

    def logits(self, state: Float[Array, "*rows hidden"]) -> Float[Array, "*rows draft_vocab"]:
        normed = state if self.is_normed else self.norm(state)
        return self.lm_head(normed).astype(jnp.float32)


def distillation_targets(
    target_head: TargetHead,
    ids: Int[Array, " draft_vocab"] | None,
    hidden: Float[Array, "*rows hidden"],
) -> DistillationTargets:
    """Compute distillation targets from states; `ids` are target ids of a reduced vocabulary."""
    full = jax.nn.softmax(target_head.logits(hidden), axis=-1)
    probs = full if ids is None else full[..., ids]
    covered = jnp.max(probs, axis=-1) == jnp.max(full, axis=-1)
    return DistillationTargets(probs, jnp.where(covered, jnp.argmax(probs, axis=-1), -1))


def compare(
    target_head: TargetHead,
    draft: Eagle3Draft,
    states: Sequence[Float[Array, "rows length hidden"]],
    hidden: Float[Array, "rows length hidden"],
    weights: Float[Array, "steps rows length"],
    divergence: Divergence,
) -> tuple[Float[Array, ""], Float[Array, "steps rows length"]]:
    """Return the weighted divergence of all steps from the targets, and where choices agree.

    The gradient is computed with the loss per block, so logits are neither kept nor recomputed.
    """
    block = CPU_BLOCK if gpu.current().arch == "cpu" else GPU_BLOCK
    size = min(block, hidden.shape[1])
    cut = partial(_blocks, size=size)
    ours, head = nnx.split(DraftHead(draft))
    theirs, says = nnx.split(target_head)
    fixed: Any = jax.lax.stop_gradient((says, draft.target_ids, cut(hidden[None]), cut(weights)))
    compared = _Compared(ours, theirs, divergence)
    # The result of custom_vjp has no type.
    found: Any = _compare(compared, head, cut(jnp.stack(states)), fixed)
    loss, agrees = found
    agrees = jnp.moveaxis(agrees, 0, 2).reshape(*weights.shape[:2], -1)
    return loss, agrees[..., : hidden.shape[1]]


class _Compared(NamedTuple):
    """Static part of the comparison, without its arrays."""

    draft: nnx.GraphDef
    target_head: nnx.GraphDef
    divergence: Divergence

    def block(self, head: Any, states: Array, given: tuple[Any, ...]) -> tuple[Array, Array]:
        """Return the weighted loss of a block [steps, rows, size, hidden] and where steps agree."""
        target_head, ids, hidden, weights = given
        taught = distillation_targets(nnx.merge(self.target_head, target_head), ids, hidden[0])
        logits = nnx.merge(self.draft, head).logits(states)
        losses = self.divergence(taught.probs, jax.nn.log_softmax(logits, axis=-1))
        agrees = _chooses(logits, jnp.broadcast_to(taught.best, logits.shape[:-1]))
        return jnp.sum(weights * losses), agrees.astype(jnp.float32)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _compare(
    compared: _Compared, head: Any, states: Array, fixed: tuple[Any, ...]
) -> tuple[Array, Array]:
    target_head, ids, *blocks = fixed

    def block(total: Array, one: tuple[Array, ...]) -> tuple[Array, Array]:
        loss, agrees = compared.block(head, one[0], (target_head, ids, *one[1:]))
        return total + loss, agrees

    return jax.lax.scan(block, jnp.float32(0), (states, *blocks))


def _forward(
    compared: _Compared, head: Any, states: Array, fixed: tuple[Any, ...]
) -> tuple[tuple[Array, Array], tuple[Any, Array]]:
    """Compute loss and gradients together; the head's gradient is summed in float32."""
    target_head, ids, *blocks = fixed
    gradient_of = jax.value_and_grad(compared.block, argnums=(0, 1), has_aux=True)

    def block(sums: tuple[Any, Array], one: tuple[Array, ...]) -> tuple[Any, tuple[Array, Array]]:
        (loss, agrees), (of_head, of_states) = gradient_of(
            head, one[0], (target_head, ids, *one[1:])
        )
        return jax.tree.map(jnp.add, sums, (of_head, loss)), (agrees, of_states)

    zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float32), head)
    (of_head, loss), (agrees, of_states) = jax.lax.scan(
        block, (zeros, jnp.float32(0)), (states, *blocks)
    )
    of_head = jax.tree.map(lambda total, x: total.astype(x.dtype), of_head, head)
    return (loss, agrees), (of_head, of_states)


def _backward(
    _: _Compared, gradients: tuple[Any, Array], given: tuple[Array, Array]
) -> tuple[Any, Any, None]:
    of_loss = given[0]
    scaled = jax.tree.map(lambda x: (of_loss * x).astype(x.dtype), gradients)
    return *scaled, None


_compare.defvjp(_forward, _backward)


def _blocks(x: Array, size: int) -> Array:
    """Reshape [steps, rows, length, *rest] to [blocks, steps, rows, size, *rest], with padding."""
    padded = jnp.pad(x, ((0, 0), (0, 0), (0, -x.shape[2] % size), *((0, 0),) * (x.ndim - 3)))
    return jnp.moveaxis(padded.reshape(*x.shape[:2], -1, size, *x.shape[3:]), 2, 0)


def _chooses(logits: Float[Array, "*rows vocab"], ids: Int[Array, "*rows"]) -> Bool[Array, "*rows"]:
    """Return whether `ids` have the largest logit; an argmax would read all logits again."""
    found = jnp.take_along_axis(logits, jnp.maximum(ids, 0)[..., None], axis=-1)[..., 0]
    return (ids >= 0) & (found == jnp.max(logits, axis=-1))
