"""Rows of 20K tokens: what their samples teach alone, and no array of length x length."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_pair import VOCAB, tiny_draft, tiny_target

from eagle3_jax.training.batches import packed_batches
from eagle3_jax.training.distillation import TargetHead
from eagle3_jax.training.draft import DraftRecipe, draft_loss, split_draft, supervised_rows
from eagle3_jax.training.features import feature_pass
from eagle3_jax.training.packing import PackedBatch, Sample

CHUNK, SAMPLES = 256, 10


@pytest.mark.long
def test_a_long_row_teaches_what_its_samples_teach_in_rows_of_their_own() -> None:
    """20,480 tokens."""
    size = 2048
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, VOCAB, size).tolist() for _ in range(SAMPLES)]
    samples = [Sample(tokens, [i > 2 for i in range(size)]) for tokens in ids]
    target = tiny_target()
    draft = tiny_draft(target)
    graphdef, params, rest = split_draft(draft)
    features = feature_pass(target, draft.config.aux_layer_ids, CHUNK)

    def loss_and_gradients(batch: PackedBatch):
        shown, total = features(batch), jnp.sum(supervised_rows(batch.wanted))

        def loss_of(params):
            draft = nnx.merge(graphdef, params, rest)
            recipe = DraftRecipe(num_steps=2)
            return draft_loss(draft, TargetHead(target), batch, shown, recipe, total)[0]

        compiled = jax.jit(jax.value_and_grad(loss_of)).lower(params).compile()
        analysis = compiled.memory_analysis()
        assert analysis is not None
        return compiled(params), analysis.temp_size_in_bytes

    whole, bytes_of_whole = loss_and_gradients(next(packed_batches(samples, 1, SAMPLES * size)))
    apart, _ = loss_and_gradients(next(packed_batches(samples, SAMPLES, size)))
    for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(apart), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5, rtol=1e-3)
    assert bytes_of_whole < (SAMPLES * size) ** 2, "a quarter of float32 scores of one head"
