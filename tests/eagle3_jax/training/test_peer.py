"""Loss and gradients are those of another trainer, on the same weights and batch.

speculators 0.9.0 (vllm-project, PyTorch) made the goldens: tests/peers/training_goldens.py.
"""

from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from peer_golden import Golden, module_and_name, the_draft, the_teacher
from sweeps import sweep

from eagle3_jax.training import draft as training
from eagle3_jax.training.distillation import DIVERGENCES, TRUST, acceptance
from eagle3_jax.training.draft import DraftRecipe, draft_loss, split_draft, supervised_rows
from eagle3_jax.training.packing import Features, PackedBatch

WITHIN = 1e-5


def entropy(probs: jax.Array, log_q: jax.Array) -> jax.Array:
    """The target's own, by which our cross-entropy is more than their KL divergence."""
    return -jnp.sum(probs * jnp.log(probs), axis=-1)


def share_of_entropy(probs: jax.Array, log_q: jax.Array) -> jax.Array:
    """Return the part of the cross-entropy that the loss `lk` has."""
    return jnp.exp(-TRUST * acceptance(probs, log_q)) * entropy(probs, log_q)


EXCESS = {
    "kl": entropy,
    "lk": share_of_entropy,
    "tv": lambda probs, log_q: jnp.zeros(probs.shape[:-1]),
}
"""What our losses have and theirs have not, row by row."""
VARIANTS = "plain", "eagle31"


@pytest.mark.parametrize(
    ("variant", "loss"),
    sweep(product(VARIANTS, EXCESS), [("plain", "kl"), ("eagle31", "lk")]),
)
def test_loss_and_gradients_are_speculators(
    variant: str, loss: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = Golden.read(variant)
    target_head, given = the_teacher(golden), golden.under("batch")
    tokens, segments, positions, wanted = (
        given[name][None] for name in ("token_ids", "segments", "positions", "wanted")
    )
    batch = PackedBatch(tokens, segments, positions, wanted)
    np.testing.assert_array_equal(supervised_rows(batch.wanted)[0], given["taught"])
    features = Features(jnp.asarray(given["aux"][None]), jnp.asarray(given["hidden"][None]))
    steps, decay = golden.described["steps"], golden.described["decay"]
    graphdef, params, rest = split_draft(the_draft(golden))

    def loss_of(params: Any, loss: str) -> jax.Array:
        draft = nnx.merge(graphdef, params, rest)
        total, recipe = jnp.sum(supervised_rows(batch.wanted)), DraftRecipe(steps, decay, loss)
        return draft_loss(draft, target_head, batch, features, recipe, total)[0]

    found, gradients = jax.jit(jax.value_and_grad(loss_of), static_argnums=1)(params, loss)
    monkeypatch.setattr(training, "DIVERGENCES", {**DIVERGENCES, "excess": EXCESS[loss]})
    excess = jax.jit(loss_of, static_argnums=1)(params, "excess")
    weight = sum(decay**step for step in range(steps))  # theirs add up to it
    theirs = float(golden.arrays[f"loss.{loss}"][0]) / weight
    assert float(found - excess) == pytest.approx(theirs, abs=WITHIN)
    ours = nnx.merge(graphdef, gradients, rest)
    checked = golden.under(f"gradient.{loss}")
    for name, gradient in checked.items():
        parameter, transposed = module_and_name(ours, name)
        value = np.asarray(parameter.get_value())
        np.testing.assert_allclose(
            value.T if transposed else value, gradient / weight, atol=WITHIN, err_msg=name
        )
    assert len(checked) == len(jax.tree.leaves(params))
