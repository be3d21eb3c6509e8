"""Devices and parts of a batch change nothing that a draft learns."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from sweeps import sweep
from tiny_pair import DRAFT, LATENT_DRAFT, TARGET, random_batch, tiny_draft, tiny_target, training

from eagle3_jax.config import DraftConfig
from eagle3_jax.layers.linear import Embedding
from eagle3_jax.mesh import shard
from eagle3_jax.training.draft import DraftRecipe
from eagle3_jax.training.placement import Placement, training_mesh

RECIPE = DraftRecipe(num_steps=2)


def losses(step, state, batches) -> list[float]:
    found = []
    for batch in batches:
        state, metrics = step(state, batch)
        found.append(float(metrics.loss))
    return found


@pytest.mark.parametrize(
    ("config", "steps"), sweep([(DRAFT, 10), (DRAFT, 50), (LATENT_DRAFT, 10)], [(DRAFT, 10)])
)
def test_four_devices_learn_what_one_does(config: DraftConfig, steps: int) -> None:
    """Two replicas of two devices; the loss is within 1e-5 at every step."""
    batches = [random_batch(i % 5, rows=4) for i in range(steps)]
    target = tiny_target()
    one = tiny_draft(target, config=config)
    alone = losses(*training(target, one, RECIPE, rate=1e-3), batches)
    placement = Placement(training_mesh(2, 2))
    assert placement.mesh is not None
    split = tiny_target()
    shard(split, placement.mesh)
    draft = tiny_draft(target, config=config)
    draft.embed_tokens = Embedding(
        TARGET.vocab_size, TARGET.hidden_size, rngs=nnx.Rngs(0), dtype=jnp.float32
    )
    draft.embed_tokens.embedding.set_value(split.embed_tokens.embedding.get_value())
    placement.check(draft, 4)
    step, state = training(split, draft, RECIPE, rate=1e-3, placement=placement)
    heads = state.params["midlayer"]["self_attn"]["o_proj"]["kernel"].get_value()
    moments = [
        leaf
        for leaf in jax.tree.leaves(state.opt_state)
        if leaf.shape == heads.shape and leaf.sharding.is_equivalent_to(heads.sharding, 2)
    ]
    assert heads.addressable_shards[0].data.shape[0] == heads.shape[0] // 2 and len(moments) >= 2
    np.testing.assert_allclose(losses(step, state, batches), alone, atol=1e-5)
    assert alone[-1] < alone[0] - 0.001 * steps


@pytest.mark.long
def test_four_parts_of_a_batch_make_the_update_of_the_whole() -> None:
    target, batches = tiny_target(), [random_batch(i, rows=8) for i in range(4)]
    assert len({float(np.sum(rows)) for rows in batches[0].wanted}) > 1, "parts differ"
    whole = training(target, tiny_draft(target), RECIPE, rate=1e-3)
    parts = training(target, tiny_draft(target), RECIPE, rate=1e-3, accumulate=4)
    np.testing.assert_allclose(losses(*parts, batches), losses(*whole, batches), atol=1e-5)


def test_rows_and_heads_that_devices_cannot_share_are_refused() -> None:
    with pytest.raises(ValueError, match="there are 8"):
        training_mesh(3, 4)
    target = tiny_target()
    with pytest.raises(ValueError, match="3 rows cannot be split evenly over 2 replicas"):
        Placement(training_mesh(2, 2)).check(tiny_draft(target), 3)
    with pytest.raises(ValueError, match="attention heads cannot be split"):
        Placement(training_mesh(1, 8)).check(tiny_draft(target, config=DRAFT), 8)
