"""Training of a small target: next-token loss, and expert balance through the correction bias."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Float

from eagle3_jax.layers.moe import MoE
from eagle3_jax.models.target import Target
from eagle3_jax.training.loop import StepFunction, TrainState
from eagle3_jax.training.packing import PackedBatch
from eagle3_tools.make_demo.training.target_pass import target_pass
from pallas_kernels.dispatch import prefer

BIAS_RATE = 2e-3


class TargetMetrics(NamedTuple):
    """Mean loss of wanted tokens, accuracy, and largest expert load relative to the mean."""

    loss: Float[Array, ""]
    accuracy: Float[Array, ""]
    imbalance: Float[Array, ""]


def target_loss(
    target: Target, batch: PackedBatch
) -> tuple[Float[Array, ""], tuple[Float[Array, ""], Float[Array, "moe_layers experts"]]]:
    """Return the cross-entropy of wanted tokens given earlier tokens, accuracy and expert loads."""
    out = target_pass(target, batch)
    logits = target.logits(out.hidden[:, :-1])
    labels = jnp.asarray(batch.token_ids)[:, 1:]
    weight = jnp.asarray(batch.wanted)[:, 1:]
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    right = (jnp.argmax(logits, axis=-1) == labels) * weight
    total = jnp.maximum(jnp.sum(weight), 1.0)
    return jnp.sum(losses * weight) / total, (jnp.sum(right) / total, out.loads)


def balance(target: Target, loads: Float[Array, "moe_layers experts"]) -> None:
    """Nudge each router's correction bias toward even load (DeepSeek-V3, arXiv 2412.19437)."""
    routers = [layer.mlp.gate for layer in target.layers if isinstance(layer.mlp, MoE)]
    for router, load in zip(routers, loads, strict=True):
        bias = router.e_score_correction_bias
        bias.set_value(bias.get_value() + BIAS_RATE * jnp.sign(jnp.mean(load) - load))


def target_step(optimizer: optax.GradientTransformation, graphdef: nnx.GraphDef) -> StepFunction:
    """Make the step that updates a target's parameters, including correction biases."""

    def loss_of(params: Any, batch: PackedBatch):
        return target_loss(nnx.merge(graphdef, params), batch)

    return balanced_step(optimizer, loss_of, partial(balanced, graphdef))


def balanced(graphdef: nnx.GraphDef, params: Any, loads: Float[Array, "moe_layers experts"]) -> Any:
    """Return a target's parameters with balanced correction biases."""
    target = nnx.merge(graphdef, params)
    balance(target, loads)
    return nnx.state(target)


def balanced_step(
    optimizer: optax.GradientTransformation,
    loss_of: Callable[[Any, Any], Any],
    balanced: Callable[[Any, Any], Any],
) -> StepFunction:
    """Make a step from `loss_of(params, batch)`, which returns what `target_loss` does.

    `balanced(params, loads)` returns the updated parameters with balanced routers.
    """

    def update(state: TrainState, batch: Any) -> tuple[TrainState, TargetMetrics]:
        gradient_of = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (accuracy, loads)), grads = gradient_of(state.params, batch)
        updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
        params = balanced(optax.apply_updates(state.params, updates), loads)
        imbalance = jnp.max(loads / jnp.mean(loads, axis=1, keepdims=True))
        return TrainState(params, opt_state), TargetMetrics(loss, accuracy, imbalance)

    compiled = jax.jit(update, donate_argnums=0)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, TargetMetrics]:
        with prefer("reference"):  # kernels have no derivatives
            return compiled(state, batch)

    return step
