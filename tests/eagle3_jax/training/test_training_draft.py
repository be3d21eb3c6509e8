"""The unroll is the chain of inference from every row at once; training lowers its loss."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_pair import DRAFT, LATENT_DRAFT, louder, random_batch, tiny_draft, tiny_target, training

from eagle3_jax.full_pass import draft_forward, forward
from eagle3_jax.models.eagle3 import Eagle3Draft
from eagle3_jax.models.target import Target
from eagle3_jax.training.distillation import (
    TargetHead,
    distillation_targets,
)
from eagle3_jax.training.draft import (
    DraftRecipe,
    draft_loss,
    draft_vocabulary,
    split_draft,
    supervised_rows,
)
from eagle3_jax.training.features import feature_pass
from eagle3_jax.training.unroll import unroll

STEPS = 4
run_unroll = nnx.jit(partial(unroll, num_steps=STEPS))


@pytest.fixture(scope="module")
def target() -> Target:
    target = tiny_target()
    louder(target.lm_head, 5.0)  # a decided teacher
    return target


@pytest.fixture(scope="module", params=["grouped"])
def draft(request: pytest.FixtureRequest, target: Target) -> Eagle3Draft:
    config = {"grouped": DRAFT, "latent": LATENT_DRAFT}[request.param]
    draft = tiny_draft(target, config=config)
    louder(draft.midlayer, 6.0)
    return draft


@pytest.mark.parametrize("draft", ["grouped", "latent"], indirect=True)
def test_step_j_equals_the_chain_inference_would_run(target: Target, draft: Eagle3Draft) -> None:
    """For one segment and each starting row r: features up to r, then the draft's own states."""
    length = 12
    token_ids = jax.random.randint(jax.random.key(0), (1, length + 1), 0, 40)
    aux = forward(target, token_ids, aux_layer_ids=draft.config.aux_layer_ids).aux_hidden[:, :-1]
    next_ids, positions = token_ids[:, 1:], jnp.arange(length)[None]
    states = run_unroll(draft, next_ids, aux, positions, jnp.ones((1, length), jnp.int32))
    np.testing.assert_allclose(states[0], draft_forward(draft, next_ids, aux)[1], atol=1e-5)

    @nnx.jit
    def one_pass(draft, inputs):
        return draft(next_ids, inputs, positions)[0]

    fused = draft.fuse(aux)
    for start in (0, 1, 4, length - STEPS):
        inputs = fused  # rows after the last one of the chain are not seen: attention is causal
        for step in range(STEPS):
            row = start + step
            out = one_pass(draft, inputs)[0, row]
            np.testing.assert_allclose(states[step][0, row], out, atol=2e-5)
            inputs = inputs.at[0, (row + 1) % length].set(out)


def test_segments_do_not_see_each_other(draft: Eagle3Draft) -> None:
    ids = jax.random.randint(jax.random.key(1), (1, 16), 0, 40)
    aux = jax.random.normal(jax.random.key(2), (1, 16, 96))
    packed_positions = jnp.tile(jnp.arange(8), 2)[None]
    segments = jnp.repeat(jnp.asarray([1, 2]), 8)[None]
    packed = run_unroll(draft, ids, aux, packed_positions, segments)
    ones = jnp.ones((1, 8), jnp.int32)
    alone = run_unroll(draft, ids[:, 8:], aux[:, 8:], packed_positions[:, :8], ones)
    for step in range(STEPS):
        np.testing.assert_allclose(packed[step][:, 8 + step :], alone[step][:, step:], atol=1e-5)


def test_only_the_targets_choices_among_the_drafts_ids_count_as_agreement(
    target: Target, draft: Eagle3Draft
) -> None:
    hidden = jax.random.normal(jax.random.key(0), (1, 9, 32))
    taught = distillation_targets(TargetHead(target), draft.target_ids, hidden)
    ids = np.asarray(draft.target_ids).tolist()
    for best, logits in zip(taught.best[0], target.logits(hidden)[0], strict=True):
        choice = int(jnp.argmax(logits))
        assert int(best) == (ids.index(choice) if choice in ids else -1)


def test_the_commonest_ids_make_the_draft_vocabulary() -> None:
    counts = np.asarray([5, 0, 9, 1, 5, 7])
    d2t = draft_vocabulary(counts, 4)
    assert (np.arange(4) + d2t).tolist() == [0, 2, 4, 5]


@pytest.mark.long
def test_bfloat16_computes_and_float32_learns() -> None:
    """Losses are near those of float32; parameters and the optimizer's memory stay float32."""
    found = []
    for dtype in (jnp.float32, jnp.bfloat16):
        target = tiny_target()
        louder(target.lm_head, 5.0)
        nnx.update(target, jax.tree.map(lambda x, to=dtype: x.astype(to), nnx.state(target)))
        recipe = DraftRecipe(num_steps=2, dtype=dtype)
        step, state = training(target, tiny_draft(target), recipe, rate=3e-3)
        losses = []
        for _ in range(12):
            state, metrics = step(state, random_batch(0))
            losses.append(float(metrics.loss))
        kept = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
        assert {leaf.dtype for leaf in kept} == {jnp.dtype(jnp.float32)}
        found.append(losses)
    np.testing.assert_allclose(*found, rtol=0.03)
    assert found[1][-1] < found[1][0] - 0.1


@pytest.mark.long
def test_what_is_kept_for_backward_changes_no_gradient(target: Target, draft: Eagle3Draft) -> None:
    batch = random_batch(0)
    features = feature_pass(target, draft.config.aux_layer_ids, 8)(batch)
    graphdef, params, rest = split_draft(draft)
    total = jnp.sum(supervised_rows(batch.wanted))

    @partial(jax.jit, static_argnums=1)
    def gradients(params, recipe):
        def loss_of(params):
            built = nnx.merge(graphdef, params, rest)
            return draft_loss(built, TargetHead(target), batch, features, recipe, total)[0]

        return jax.value_and_grad(loss_of)(params)

    found = [gradients(params, DraftRecipe(2, keep_activations=kept)) for kept in (True, False)]
    for a, b in zip(*map(jax.tree.leaves, found), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6, rtol=1e-5)
