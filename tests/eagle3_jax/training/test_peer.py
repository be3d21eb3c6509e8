"""Loss and gradients are those of another trainer, on the same weights and batch.

speculators 0.9.0 (vllm-project, PyTorch) made the goldens: tests/peers/training_goldens.py.
"""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from tiny_pair import tiny_target

from convert.models.eagle3 import canonical_draft_name
from eagle3_jax.config import DraftConfig, RopeConfig
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.training.draft import DraftRecipe, draft_loss, split_draft, taught_rows
from eagle3_jax.training.features import Features
from eagle3_jax.training.lesson import Teacher
from eagle3_jax.training.packing import PackedBatch

GOLDENS = Path(__file__).parent / "goldens"
WITHIN = 1e-5


class Golden:
    """A file of arrays by name, and what it says of itself."""

    def __init__(self, variant: str) -> None:
        with safe_open(GOLDENS / f"speculators_{variant}.safetensors", "numpy") as file:
            self.arrays = {name: file.get_tensor(name) for name in file.keys()}
            self.described = json.loads(file.metadata()["described"])

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        found = {k: v for k, v in self.arrays.items() if k.startswith(f"{prefix}.")}
        return {name.removeprefix(f"{prefix}."): array for name, array in found.items()}


CASES = [("plain", "kl"), ("plain", "tv"), ("plain", "lk"), ("eagle31", "kl")]


def module_and_name(model: Any, name: str) -> tuple[nnx.Variable[Any], bool]:
    """Our parameter of a published name, and whether it is kept transposed."""
    *path, _ = canonical_draft_name(name).split(".")
    for part in path:
        model = model[int(part)] if part.isdigit() else getattr(model, part)
    for kind in ("kernel", "embedding", "weight", "scale"):
        if isinstance(found := getattr(model, kind, None), nnx.Variable):
            return found, kind == "kernel"
    raise AssertionError(name)


def the_draft(golden: Golden) -> Eagle3Draft:
    shape = golden.described["shape"]
    config = DraftConfig(
        **shape,
        draft_vocab_size=shape["vocab_size"],
        target_hidden_size=shape["hidden_size"],
        rms_norm_eps=1e-6,
        max_position_embeddings=4096,
        rope=RopeConfig(10000.0),
        aux_layer_ids=(0, 1, 2),
        **golden.described["variant"],
    )
    draft = Eagle3Draft(config, rngs=nnx.Rngs(0))
    for name, weight in golden.under("weight").items():
        if not name.startswith("verifier"):
            parameter, transposed = module_and_name(draft, name)
            parameter.set_value(jnp.asarray(weight.T if transposed else weight))
    return draft


def the_teacher(golden: Golden) -> Teacher:
    teacher = Teacher(tiny_target())
    norm, _ = module_and_name(teacher, "norm.weight")
    head, _ = module_and_name(teacher, "lm_head.weight")
    norm.set_value(jnp.asarray(golden.arrays["weight.verifier_norm.weight"]))
    head.set_value(jnp.asarray(golden.arrays["weight.verifier_lm_head.weight"].T))
    teacher.norm.eps = 1e-6
    return teacher


def entropy(golden: Golden, teacher: Teacher, batch: PackedBatch, hidden: jax.Array) -> float:
    """The mean of the teacher's own, by which our cross-entropy is more than a KL divergence."""
    log_p = jax.nn.log_softmax(teacher.logits(jnp.roll(hidden, -1, axis=1)), axis=-1)
    rows = taught_rows(batch.wanted)
    return float(-jnp.sum(jnp.sum(jnp.exp(log_p) * log_p, axis=-1) * rows) / jnp.sum(rows))


@pytest.mark.parametrize(("variant", "loss"), CASES)
def test_loss_and_gradients_are_speculators(variant: str, loss: str) -> None:
    golden = Golden(variant)
    teacher, given = the_teacher(golden), golden.under("batch")
    tokens, segments, positions, wanted = (
        given[name][None] for name in ("token_ids", "segments", "positions", "wanted")
    )
    batch = PackedBatch(tokens, segments, positions, wanted)
    np.testing.assert_array_equal(taught_rows(batch.wanted)[0], given["taught"])
    features = Features(jnp.asarray(given["aux"][None]), jnp.asarray(given["hidden"][None]))
    recipe = DraftRecipe(golden.described["steps"], golden.described["decay"], loss)
    graphdef, params, rest = split_draft(the_draft(golden))

    def loss_of(params: Any) -> jax.Array:
        draft = nnx.merge(graphdef, params, rest)
        total = jnp.sum(taught_rows(batch.wanted))
        return draft_loss(draft, teacher, batch, features, recipe, total)[0]

    found, gradients = jax.jit(jax.value_and_grad(loss_of))(params)
    weight = sum(recipe.step_decay**step for step in range(recipe.num_steps))  # theirs add up to it
    theirs = float(golden.arrays[f"loss.{loss}"][0]) / weight
    if loss == "kl":
        found -= entropy(golden, teacher, batch, features.hidden)
    if loss != "lk":  # theirs has a share of KL in it, not of cross-entropy
        assert float(found) == pytest.approx(theirs, abs=WITHIN)
    ours = nnx.merge(graphdef, gradients, rest)
    checked = golden.under(f"gradient.{loss}")
    for name, gradient in checked.items():
        parameter, transposed = module_and_name(ours, name)
        value = np.asarray(parameter.get_value())
        np.testing.assert_allclose(
            value.T if transposed else value, gradient / weight, atol=WITHIN, err_msg=name
        )
    assert len(checked) == len(jax.tree.leaves(params))
